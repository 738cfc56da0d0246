"""The proof harness: suites of checks that every operator of the catalogue passes without new code.

A check is a function of a subject (an operator with settings) and a script; `prove` runs it on many scripts. The same
checks are run on deliberately broken operators, which they must catch (tests/harness/test_teeth.py).
"""

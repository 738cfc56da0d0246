"""`python -m benchmarks`: every module of this package that defines `cases`, one after the other."""

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.runner import Cases, main


def discovered() -> list[Cases]:
    """The `cases` function of each benchmark module, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__, "benchmarks."))
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [module.cases for module in modules if hasattr(module, "cases")]


if __name__ == "__main__":
    sys.exit(main(*discovered()))

"""Our parts beside their peers: `python -m benchmarks --help` runs them, `runner` says how to write one."""

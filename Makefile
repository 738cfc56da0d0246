# Headrace: `make demo` and `make test` each set everything up first. `make help` lists the rest.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format bench bench-quick lock clean java

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: java $(READY) ## run the main job end to end on generated feeds (starts over each time)
	@$(BIN)/headrace demo

test: java check ## lint, type-check and run the default tests
	@$(BIN)/pytest

test-slow: java $(READY) ## the default tests and the long ones
	@HEADRACE_EXAMPLES=20 $(BIN)/pytest -m 'slow or not slow'

check: $(READY) ## ruff and mypy, nothing run
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(READY) ## rewrite the sources in the one style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(READY) ## all benchmarks, with their peers (minutes)
	@$(BIN)/python -m benchmarks

bench-quick: $(READY) ## the same on small sizes (some minutes)
	@$(BIN)/python -m benchmarks --quick

lock: ## write requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --group dev --generate-hashes --no-header --no-annotate \
	  --python-version 3.11 --quiet -o requirements.lock

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): requirements.lock pyproject.toml
	@echo "setting up $(VENV) from requirements.lock (once; a few minutes on a slow line)"
	@command -v $(PYTHON) >/dev/null || { echo "Headrace needs Python 3.11: install it, or name it with 'make PYTHON=...'"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

java:
	@.ci/require-java

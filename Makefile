# One verb a chore. `make run` and `make test` set up all they need in .venv.
.DEFAULT_GOAL := help
.PHONY: help run serve test check format sim bench bench-peers bench-pipeline wheel lock clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed

# Tests start hundreds of Python processes: without kept bytecode, each of them compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# Made again whenever the dependencies change.
$(INSTALLED): pyproject.toml requirements-dev.lock
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Fairlead needs Python 3.11 or later; '$(PYTHON)' is not. Try: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv (once; about a minute) ..."
	"$(PYTHON)" -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements-dev.lock --editable '.[dev]'
	touch $@

run: $(INSTALLED) ## set up, then show the whole: server, workers, pipeline, report (two minutes)
	$(BIN)/fairlead demo

serve: $(INSTALLED) ## set up, then run a server for Temporal's SDKs at 127.0.0.1:7233, kept in dev.db and journaled
	$(BIN)/fairlead server start-dev --db-filename dev.db --journal journal --journal-payloads

# Compiles first: the worker processes start at the same time, and each would compile all modules that it imports.
test: $(INSTALLED) ## set up, then run every test
	$(BIN)/python -m compileall -q -j 0 src
	$(BIN)/pytest

check: $(INSTALLED) ## format, lint, types, imports, sizes, prose: changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/lint-rooms
	$(BIN)/python scripts/lint-prose

format: $(INSTALLED) ## put the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: $(INSTALLED) ## run 200 seeds of a cluster and 300 of several in trouble, then search the core's interleavings deeply
	HYPOTHESIS_PROFILE=sim $(BIN)/pytest -m sim tests/simulators/matching --timeout 900
	HYPOTHESIS_PROFILE=sim $(BIN)/pytest -m sim tests/simulators/replication --timeout 900
	HYPOTHESIS_PROFILE=sim $(BIN)/pytest -m sim --ignore tests/simulators/matching --ignore tests/simulators/replication --timeout 900

bench: $(INSTALLED) ## measure the start of a server, the hot calls of the core, the stores, matching, gRPC, workflows beside Temporal's server, and three hosts beside one
	$(BIN)/python -m benchmarks.suite

bench-peers: $(INSTALLED) ## measure durable no-op tasks beside other task queues, each in its own environment in .venv-peers: half an hour
	$(BIN)/python -m benchmarks.peers --write

bench-pipeline: $(INSTALLED) ## measure the pipeline's jobs at 1, 10 and 50 million rows: two hours, and 10 GB of /tmp
	failed=0; for part in _stream _increment _cluster ""; do $(BIN)/python -m benchmarks.pipeline$$part || failed=1; done; exit $$failed

wheel: ## build the wheel into dist, and run a workflow with it in a fresh environment
	rm -rf dist
	scripts/build-wheel dist "$(PYTHON)"

lock: ## pin the newest versions of all dependencies in requirements-dev.lock (needs uv: pip install uv)
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev --no-annotate \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements-dev.lock

clean: ## remove what the other verbs made
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist

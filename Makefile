# Everything starts from a bare Python 3.10 or newer:  make demo  or  make test  sets up whatever it needs.
SHELL := /bin/bash
PYTHON ?= python3
# One of them waits for Ray for much of its time, so there is one more than processors to keep busy.
WORKERS ?= 3
FAST_WORKERS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
PIP := $(PY) -m pip -qq --disable-pip-version-check
READY := $(VENV)/.driftlab-ready

# Two threads inside one operator are slower than one as soon as two processes compute at the same time.
export OMP_NUM_THREADS ?= 1
# Compiled tests are kept: to rewrite every assertion anew takes each worker seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check types format bench mutants clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY)  ## the virtual environment with everything in it

demo: $(READY)  ## the main job on built-in data: a table, a report with plots
	@$(VENV)/bin/driftlab demo

test: $(READY)  ## every test
	@$(PYTEST)

test-fast: $(READY)  ## the inner loop: rules of the house and the unit tests of a fifth of a second or less
	@$(PYTEST) -n $(FAST_WORKERS) -m "not slow" tests/arch tests/unit

check: $(READY)  ## format, lint, strict types and every test (the layer rules are tests)
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(MAKE) --no-print-directory -j2 types test

types: $(READY)  ## strict types
	@$(PY) -m mypy

format: $(READY)  ## put the code into its one format
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

bench: $(READY)  ## one JSON line per ratio; goes on after a failure, and ends with 1 then
	@failed=0; for file in benchmarks/[a-z]*.py; do $(PY) $$file || { echo "failed: $$file" >&2; failed=1; }; done; exit $$failed

mutants: $(READY)  ## small changes to FILE (or a folder) that no fast unit test notices; SAMPLE=0.1 and TESTS=… take less time
	@$(PY) -m benchmarks.mutants $(FILE) --sample $(or $(SAMPLE),1) --tests $(or $(TESTS),tests/unit)

clean:  ## remove what builds and checks left behind; environment and runs stay
	@rm -rf build dist out *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# torch and torchvision come first and together: chosen later, another torchvision would pull in another torch.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'driftlab needs Python 3.10 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; exit 1; }
	@echo 'Setting up $(VENV): once, a few minutes.'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo '  torch, the largest part'
	@$(PIP) install torch torchvision -c constraints.txt
	@echo '  everything else'
	@$(PIP) install -e '.[dev,notebook,data]' -c constraints.txt
	@touch $@

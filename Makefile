# Everything starts from a bare Python 3.10 or newer:  make demo  or  make test  sets up whatever it needs.
SHELL := /bin/bash
PYTHON ?= python3
# Two of them wait for Ray for much of their time, and end after it if the others keep the processors busy.
WORKERS ?= 4
FAST_WORKERS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# A terminal shows pip's own progress. Modules are compiled when they are first imported: most never are.
PIP_INSTALL := -m pip $(if $(MAKE_TERMOUT),,-qq) --disable-pip-version-check install --no-compile -c constraints.txt
INSTALL := $(PY) $(PIP_INSTALL)
READY := $(VENV)/.driftlab-ready
READY_ALL := $(VENV)/.driftlab-ready-all
JUPYTER := $(VENV)/jupyterlab
READY_JUPYTER := $(JUPYTER)/.driftlab-ready
OLDEST := $(VENV)/oldest-ray
READY_OLDEST := $(OLDEST)/.driftlab-ready
OLDEST_RAY := $(shell sed -n 's/.*"ray\[.*\]>=\([0-9.]*\),.*/\1/p' pyproject.toml)
RAY_UNITS := actors_* serve_* tuning_* doctor parallel
PYTHONS := $(shell sed -n 's/.*Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml)

# Two threads inside one operator are slower than one as soon as two processes compute at the same time.
export OMP_NUM_THREADS ?= 1
# Compiled tests are kept: to rewrite every assertion anew takes each worker seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo notebook test test-fast check golden types format pythons oldest bench mutants clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY_ALL)  ## the virtual environment with everything in it

demo: $(READY)  ## four acts on built-in data, one per paper: a sentence and a report for each
	@$(VENV)/bin/driftlab demo

notebook: $(READY_JUPYTER)  ## JupyterLab in notebooks/, with the tour open
	@cd notebooks && JUPYTER_CONFIG_PATH="$$PWD/settings" PATH="$(CURDIR)/$(JUPYTER)/bin:$$PATH" \
	  jupyter lab tour.py $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: $(READY_ALL)  ## every test
	@$(PYTEST)

test-fast: $(READY_ALL)  ## the inner loop: rules of the house and the unit tests of a fifth of a second or less
	@$(PYTEST) -n $(FAST_WORKERS) -m "not slow" tests/arch tests/unit

check: $(READY_ALL)  ## format, lint, strict types and every test (the layer rules are tests)
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(MAKE) --no-print-directory -j2 types test

golden: AGAINST ?= HEAD
golden: $(READY_ALL)  ## what changes since AGAINST=HEAD: requests, tables, reports, claims, frames, cache keys; minutes
	@$(PY) tests/golden/golden.py check --against $(AGAINST)

types: $(READY_ALL)  ## strict types
	@$(PY) -m mypy

format: $(READY_ALL)  ## put the code into its one format
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

pythons: $(READY)  ## whether the pinned wheels fit together for every Python that is promised; asks the package index
	@$(INSTALL) uv
	@for version in $(PYTHONS); do echo "Python $$version"; $(VENV)/bin/uv pip compile -q --python-version $$version \
	  --python-platform x86_64-manylinux_2_28 --only-binary :all: --all-extras -c constraints.txt pyproject.toml \
	  >/dev/null || exit 1; done

oldest: $(READY_OLDEST)  ## the tests of Ray on the oldest version that pyproject.toml allows, in its own environment; minutes
	@$(OLDEST)/bin/python -c 'import ray; print("Ray", ray.__version__)'
	@$(OLDEST)/bin/python -m pytest -n $(FAST_WORKERS) --dist loadgroup --no-loadscope-reorder -m ray tests
	@$(OLDEST)/bin/python -m pytest -n $(FAST_WORKERS) $(wildcard $(RAY_UNITS:%=tests/unit/test_%.py))

bench: $(READY_ALL)  ## one JSON line per ratio; goes on after a failure, and ends with 1 then
	@failed=0; for file in benchmarks/[a-z]*.py; do $(PY) $$file || { echo "failed: $$file" >&2; failed=1; }; done; exit $$failed

mutants: $(READY_ALL)  ## small changes to FILE (or a folder) that no fast unit test notices; SAMPLE=0.1 and TESTS=… take less time
	@$(PY) -m benchmarks.mutants $(FILE) --sample $(or $(SAMPLE),1) --tests $(or $(TESTS),tests/unit)

clean:  ## remove what builds and checks left behind; environment and runs stay
	@rm -rf build dist out *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# torch and torchvision come first and together: chosen later, another torchvision would pull in another torch.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'driftlab needs Python 3.10 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; exit 1; }
	@echo 'Installing driftlab into $(VENV), once: 2.0 GB, 2 to 3 minutes'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo '  1 of 2: torch and torchvision, 0.9 GB, a third of the time'
	@$(INSTALL) torch torchvision
	@echo '  2 of 2: Ray, Arrow, OpenCV, SciPy and the rest, 1.1 GB'
	@$(INSTALL) -e .
	@touch $@

$(READY_ALL): $(READY)
	@echo 'Adding what tests, notebooks and optional data need, once: 0.5 GB, about a minute'
	@$(INSTALL) -e '.[dev,notebook,data]'
	@touch $@

# JupyterLab has its own environment: Ray imports one of its packages if it is installed, which takes each process 0.8 s.
$(READY_JUPYTER): $(READY_ALL)
	@echo 'Adding JupyterLab, once: 0.2 GB, half a minute'
	@$(PYTHON) -m venv --clear $(JUPYTER)
	@$(JUPYTER)/bin/python $(PIP_INSTALL) jupyterlab jupytext
	@JUPYTER_PATH="$(CURDIR)/$(JUPYTER)/share/jupyter" $(PY) -m ipykernel install --prefix $(JUPYTER) --name python3 >/dev/null
	@touch $@

$(READY_OLDEST): pyproject.toml constraints.txt
	@echo 'Installing Ray $(OLDEST_RAY) and the rest into $(OLDEST): 2.3 GB, 3 to 4 minutes'
	@$(PYTHON) -m venv --clear $(OLDEST)
	@sed 's/^ray==.*/ray==$(OLDEST_RAY)/' constraints.txt >$(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python $(subst constraints.txt,$(OLDEST)/constraints.txt,$(PIP_INSTALL)) torch torchvision
	@$(OLDEST)/bin/python $(subst constraints.txt,$(OLDEST)/constraints.txt,$(PIP_INSTALL)) -e '.[dev]'
	@touch $@

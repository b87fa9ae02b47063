# `make figures` runs the default configuration, `make test` the tests; both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PYTHONNOUSERSITE := 1

.PHONY: figures test test-slow test-slurm test-all check format benchmark docs lock clean-venv

figures: $(VENV)/.installed  ## the tables and figures of config/config.yaml
	snakemake --cores all
	@headmaps where

test: $(VENV)/.installed-dev  ## the ordinary tests (under ten minutes)
	pytest -m "not slow and not slurm" $(PYTEST_FLAGS)

test-slow: $(VENV)/.installed-dev  ## the long ones
	pytest -m "slow and not slurm" $(PYTEST_FLAGS)

test-slurm: $(VENV)/.installed-dev  ## those that start a SLURM cluster on this machine (as root, from Debian's packages)
	pytest -m slurm $(PYTEST_FLAGS)

test-all: test test-slow test-slurm

check: $(VENV)/.installed-dev  ## formatters, linters, types
	ruff format --check .
	ruff check .
	snakefmt --check Snakefile workflow
	snakemake --lint
	mypy

format: $(VENV)/.installed-dev
	ruff format .
	ruff check --fix .
	snakefmt Snakefile workflow

benchmark: $(VENV)/.installed  ## speed against what one would otherwise use, in one run
	headmaps benchmark

docs: $(VENV)/.installed  ## the generated parts of the documentation: config/README.md, config/schema.json
	headmaps reference --write

lock:  ## re-lock the dependencies (needs uv)
	cd envs && for name in requirements requirements-dev; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header $$name.in -o $$name.lock; done

$(VENV)/.installed: envs/requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headmaps needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 figures" >&2; exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked packages into $(VENV) ..."
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: envs/requirements-dev.lock $(VENV)/.installed
	@echo "Installing the locked packages of the tests into $(VENV) ..."
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

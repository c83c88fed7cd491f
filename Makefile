# One command per job. `make` alone lists them. Needs Python 3.11 or newer, pip and make; tests need APT too.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
ARGS   ?=
FUZZ_SECONDS ?= 60

BIN := $(VENV)/bin
# -qq: errors only. A failing install still says why.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# Tested at this version. Named in every install that may bring torch in: left to itself, pip takes the newest build,
# with several GB of CUDA packages, where a CPU build of this one will do.
TORCH := torch==2.13.0

# Programs that tests drive, as program:package by their Debian names. What is there already is not installed again, so
# a machine that is not Debian's needs only to have them. The demo and the library itself need none.
APT := redis-server:redis-server pg_ctlcluster:postgresql chromium:chromium node:nodejs npm:npm

# What tests take from npm: folders with a lock file.
NPM := tests/viewer tests/atmosphere/pds

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check format bench docs dist soak fuzz clean ready system

help: ## list the jobs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ready ## install everything for development into .venv

demo: $(VENV)/demo.stamp ## see it work: pack, query, read in order and at random, timed beside webdataset
	@$(BIN)/python examples/demo.py $(ARGS)

test: ready ## run every test, on two processes (ARGS="-k name" for some)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(VENV)/full.stamp ## ruff, mypy --strict, pyright
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --strict
	@$(BIN)/pyright

format: $(VENV)/full.stamp ## let ruff fix what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/full.stamp ## measure against the peers and the disk; writes benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/full.stamp ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

dist: $(VENV)/full.stamp ## build wheel and source archive, check them, and try the wheel in a new environment
	@rm -rf dist
	@$(BIN)/python -m build --quiet
	@$(BIN)/python -m twine check --strict dist/*
	@$(PYTHON) -m venv dist/venv
	@dist/venv/bin/python -m pip install -qq --disable-pip-version-check dist/*.whl
	@cd dist && venv/bin/python ../tests/smoke.py
	@rm -rf dist/venv
	@ls dist/*

soak: ready ## run the tests that leave something to chance, as often as the issues ask (about an hour)
	@SHOAL_SOAK=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout=3600 $(ARGS)

fuzz: $(VENV)/fuzz.stamp ## feed damaged archives to the tar reader for FUZZ_SECONDS (60)
	@$(BIN)/python tests/fuzz/fuzz_scan.py -max_total_time=$(FUZZ_SECONDS) $(ARGS)

clean: ## remove everything that make made
	@rm -rf $(VENV) $(addsuffix /node_modules,$(NPM)) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis .bench
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------------------- what jobs stand on

# A stamp is newer than its inputs when the install is up to date, so a second run costs nothing.
$(VENV)/demo.stamp: pyproject.toml Makefile | $(BIN)/python
	@echo "installing what the demo needs into $(VENV)"
	@$(PIP) -e '.[images]' webdataset
	@touch $@

$(VENV)/full.stamp: pyproject.toml Makefile | $(BIN)/python
	@echo "installing the development tools into $(VENV) (a few minutes, once)"
	@$(PIP) -e '.[test,check,docs]' build twine '$(TORCH)'
	@touch $@

# Packages of Python, of the system and of npm side by side: each waits for something else.
ready: | $(BIN)/python
	@$(MAKE) --no-print-directory -j3 $(VENV)/full.stamp $(VENV)/npm.stamp system

# Each folder has a package.json and a lock file that names versions and their checksums.
$(VENV)/npm.stamp: $(addsuffix /package-lock.json,$(NPM)) | system $(BIN)/python
	@for folder in $(NPM); do (cd $$folder && npm ci --silent --no-fund --no-audit) || exit 1; done
	@touch $@

$(VENV)/fuzz.stamp: pyproject.toml Makefile | $(BIN)/python
	@$(PIP) -e '.[fuzz]'
	@touch $@

# Debian's own Python comes without ensurepip; then the pip it does have fills the new environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shoal needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install -qq --disable-pip-version-check pip; }

system:
	@missing=; for pair in $(APT); do command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -n "$$missing" ]; then \
		command -v apt-get >/dev/null || { echo "please install:$$missing" >&2; exit 1; }; \
		echo "installing$$missing"; \
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing; } >/dev/null; \
	fi

# Everything runs from .venv, which `make setup` builds from constraints.txt. Needs Python >= 3.11 and make; no Java.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
PYTHON ?= $(shell for name in $(CANDIDATES); do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := spark,connect,jre,s3,gcs,azure,delta,iceberg,sql,cli,ui,metrics,otel,testing,demo,docs,notebooks,dev,emulators,lint
TEST_PROCESSES ?= 2
# `python -m tests.pins` makes others, for other versions.
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --constraint $(CONSTRAINTS)

# An environment that was built elsewhere and then moved or copied would run the code of that other place.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

.DEFAULT_GOAL := help
.PHONY: help setup browser test check audit format docs bench demo nexmark fuzz soak clean

help: ## Explain every target
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Build .venv with everything that the other targets need, and .venv-readers with another Spark
	@$(BIN)/python -m tests.readers.spark_environment || true

# The stamp is written last and removed first: a build that was interrupted starts again from nothing.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "Stateline needs Python 3.11 or newer; set PYTHON to one." >&2; exit 1; }
	@if test -e $(STAMP); then rm -f $(STAMP); else $(PYTHON) -m venv --clear $(VENV); fi
	@echo "Installing into $(VENV); this takes a minute or two."
	@$(PIP) hatchling editables setuptools
	@$(PIP) --no-build-isolation --editable ".[$(EXTRAS)]"
	@# Where nobody may write bytecode later, each process would compile all that it imports.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib src || echo "These files run without bytecode, if at all." >&2
	@echo $(CURDIR) > $(STAMP)

browser: $(STAMP) ## Install Chromium, which tests of pages need, by the system's package manager, unless it is there
	@$(BIN)/python -m tests.kit.browser

test: $(STAMP) browser ## Run every test, in TEST_PROCESSES (2); ARGS="-k name" picks some
	@$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup $(ARGS)

check: $(STAMP) ## Check format, lint, types, layers, security and known vulnerabilities
	$(BIN)/python -m ruff format --check --quiet .
	$(BIN)/python -m ruff check --quiet .
	$(BIN)/python -m mypy --no-error-summary
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command; lint_imports_command(["--no-cache", "--no-logo"])'
	$(BIN)/python -m bandit --quiet --recursive src --exclude src/stateline/testing
	$(BIN)/python -m tests.audit

audit: $(STAMP) ## Ask the package index about known vulnerabilities of what is pinned; fails without an answer
	@$(BIN)/python -m tests.audit --strict

format: $(STAMP) ## Rewrite the code in the house format
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

docs: $(STAMP) ## Build the documentation as a site, in build/site; ARGS=--no-notebooks runs no notebook
	@$(BIN)/python -m docs.site $(ARGS)

bench: $(STAMP) ## Run the benchmarks, which print ratios of one run
	@$(BIN)/python -m benchmarks stateful $(ARGS)

demo: $(STAMP) ## Stream 336,776 flights into files and tables, kill the driver three times, compare every row
	@$(BIN)/python -m examples.demo $(ARGS)

nexmark: $(STAMP) ## Run a query of Nexmark, compare every row with SQL; ARGS="--query q7" picks one
	@$(BIN)/python -m examples.nexmark $(ARGS)

fuzz: $(STAMP) ## Feed every decoder of stored bytes with bad ones, for FUZZ_SECONDS (60) each
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: $(STAMP) ## Look for trouble for SOAK_MINUTES (60), appending to soak-report.jsonl
	@$(BIN)/python -m tests.soak

clean: ## Remove .venv and caches, never data
	rm -rf $(VENV) .venv-flink .venv-readers .venv-readers.lock .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .fuzz build

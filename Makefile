# Everything runs from .venv, which `make setup` builds from constraints.txt. Needs: Python >= 3.11 and make. No Java needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := spark,s3,gcs,azure,cli,metrics,dev,demo

.DEFAULT_GOAL := help
.PHONY: help setup test check format bench demo clean

help: ## Explain every target
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Build .venv with everything the other targets need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stateline needs Python >= 3.11, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $(STAMP)

test: $(STAMP) ## Run every test
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP) ## Format, lint, types, layer contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Run the benchmarks that the README quotes
	$(BIN)/python -m benchmarks stateful

demo: $(STAMP) ## 336,776 flights, three kills, one rescale, every row compared
	$(BIN)/python -m examples.demo $(ARGS)

clean: ## Remove .venv and caches (never data)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# `make` alone lists what there is. Every target sets up what it needs, once, in .venv.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.set-up
# The Pythons to try, best first: those that every pinned dependency has wheels for, then whatever there is.
# A name on PATH may be a shim that fails, so each is run before it is believed. `make setup PYTHON=…` overrides.
PYTHONS := python3.14 python3.13 python3.12 python3.11 python3 python
USABLE  := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long check format bench bench-service bench-spark bench-placements bench-xml bench-bluedove bench-sonnet faults torture fuzz simulate-long clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make the virtual environment .venv with everything in it

$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  chosen=; \
	  for candidate in $(or $(PYTHON),$(PYTHONS)); do \
	    if $$candidate -c '$(USABLE)' >/dev/null 2>&1; then chosen=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$chosen" ]; then \
	    echo "Tidings needs Python 3.11 or newer with its venv module, and none of these is: $(or $(PYTHON),$(PYTHONS))." >&2; \
	    echo "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)" >&2; \
	    echo "or name it: make setup PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$($$chosen --version)"; \
	  $$chosen -m venv --clear $(VENV); \
	fi; \
	echo "Installing the dependencies (the first time takes a few minutes: pyspark alone is 490 MB)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[service,postgresql,kafka,tls,dev]'
	@touch $@

run: $(STAMP) ## see it work: the service, with real flights and a few thousand subscribers, until Ctrl-C
	@$(BIN)/python -m tidings serve --demo

test: $(STAMP) ## the test suite, but for what takes minutes
	@$(BIN)/python -m pytest -q -m "not spark and not long"
	@$(BIN)/python -m pytest -q -m "spark and not long"

test-long: $(STAMP) ## only the tests that take minutes
	@$(BIN)/python -m pytest -q -m long

check: $(STAMP) ## lint, formatting, types, the direction of imports, and how large the code is
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo
	@$(BIN)/python -m benchmarks.code_size

format: $(STAMP) ## put the code into its one format
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(STAMP) ## measure, and write the figures to benchmarks/results and the pictures to docs/pictures
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.plots
	$(BIN)/python -m benchmarks.figures

bench-service: $(STAMP) ## the service under load: publishing, delivery, memory; the client on the same cores
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.many_domains
	$(BIN)/python -m benchmarks.service_plots
	$(BIN)/python -m benchmarks.figures

bench-spark: $(STAMP) ## the same for the pipeline on Spark, beside SQL
	$(BIN)/python -m benchmarks.spark_matching
	$(BIN)/python -m benchmarks.spark_latency --seconds 600
	$(BIN)/python -m benchmarks.spark_plots
	$(BIN)/python -m benchmarks.figures

bench-placements: $(STAMP) ## every placement on two executors, beside SQL, and what the planner makes of them
	$(BIN)/python -m benchmarks.placements
	$(BIN)/python -m benchmarks.placements_plots
	$(BIN)/python -m benchmarks.figures

bench-xml: $(STAMP) ## paths over XML, beside lxml
	$(BIN)/python -m benchmarks.xml
	$(BIN)/python -m benchmarks.xml --divided
	$(BIN)/python -m benchmarks.admission
	$(BIN)/python -m benchmarks.figures

bench-bluedove: $(STAMP) ## BlueDove's policies, beside P2P and full replication, in the simulator
	$(BIN)/python -m benchmarks.bluedove

bench-sonnet: $(STAMP) ## Sonnet's overlay at 500 to 3,000 nodes, beside flooding and DHT multicast
	$(BIN)/python -m benchmarks.sonnet
	$(BIN)/python -m benchmarks.sonnet_plots
	$(BIN)/python -m benchmarks.figures

faults: $(STAMP) ## kill, damage, fill and overload a real service, and check that it kept every promise
	@$(BIN)/python -m tests.service.faults
	@$(BIN)/python -m tests.service.faults.table
	@$(BIN)/python -m tests.service.faults.attacks

MINUTES ?= 10

torture: $(STAMP) ## schedules of chance against a real service, MINUTES=10 of them; a failure prints its seed
	@$(BIN)/python -m tests.service.torture --minutes $(MINUTES) --save
	@$(BIN)/python -m tests.service.torture.results

fuzz: $(STAMP) ## interpreter, matcher and Spark against each other on a million pairs
	$(BIN)/python -m tidings.testing.fuzz

# Every system and variant, 1,120 seeds each, of every kind of trouble; a failure prints the command that plays it again.
simulate-long: $(STAMP) ## ten thousand simulations of the overlays: about half an hour
	$(BIN)/python -m tidings simulate --all --seeds 1120 --mixed --jobs 2

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist spark-warehouse
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

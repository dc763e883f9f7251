# The workshop.  Every target makes the environment it needs from pyproject.toml; nothing has to be installed before
# but Python 3.11 or newer and make.

SHELL := /bin/bash
VENV := .venv
NEWEST := 3.13
AZURITE := 3.37.0
PLAYWRIGHT := 1.56.1
ZARRITA := 0.7.5
PYRIGHT := 1.1.414
NEWEST_VENV := .venv-$(NEWEST)
JOBS ?= 2
LINTED := fsstore tests benchmarks examples docs conftest.py

# Tests that are about the interpreter rather than about the source text or the memory that is taken.
# Those beside other libraries are run by `make test-long`: both together take half as long as the whole suite.
NEWEST_TESTS := tests/unit tests/contract
# The servers of other authors are among the latter, too.
SERVER_TESTS := tests/contract/test_real_servers.py tests/contract/test_cloud_emulators.py
NEWEST_TESTS_LONG := tests/interop $(SERVER_TESTS)
NEWEST_DESELECT := $(addprefix --ignore=tests/unit/test_,house_style.py packaging.py chunked_memory.py) \
    $(addprefix --ignore=,$(SERVER_TESTS))

# What trains (PyTorch, JAX) is larger than everything else together: its tests have an environment of their own.
TRAINING_VENV := .venv-training
TRAINING_TESTS := tests/interop/test_torch.py tests/interop/test_orbax.py tests/interop/test_multiscale.py

.PHONY: help demo test test-suite test-newest test-newest-found test-long test-training bench clean
.PHONY: check check-format check-lint check-types check-docs format docs
.DELETE_ON_ERROR:

help:
	@echo "make demo       open arrays by URL; installs only what fsstore itself needs"
	@echo "make test       the whole test suite, and its core on Python $(NEWEST)"
	@echo "make test-long  the tests that loop for minutes, and those beside other libraries on Python $(NEWEST)"
	@echo "make test-training  the tests beside PyTorch, JAX and the libraries of OME-Zarr"
	@echo "make check      format, lint, types, docs"
	@echo "make format     rewrite the source as the formatter wants it"
	@echo "make docs       build the documentation into site/"
	@echo "make bench      measure against other libraries"

# -- environments -----------------------------------------------------------------------------------------------

$(VENV)/.created:
	python=$$(.ci/find-python 3.11 3.12 3.13) && "$$python" -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@

$(VENV)/.runtime: $(VENV)/.created pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.development: $(VENV)/.created pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --editable . --group test --group lint --group docs
	touch $(VENV)/.runtime $@

# A browser for the viewer, and shells for completions.
PROGRAMS := chromium zsh fish

# azurite, a server for the tests, zarrita.js, a reader of zarr, pyright, a type checker, and playwright-core, which
# drives Debian's Chromium.  Tests of what cannot be had here name it and are skipped.  One command installs them all:
# another one would take away what the first has brought.
NODE_PACKAGES := azurite@$(AZURITE) playwright-core@$(PLAYWRIGHT) zarrita@$(ZARRITA) pyright@$(PYRIGHT)

$(VENV)/.node: $(VENV)/.created Makefile
	@if command -v npm >/dev/null; then \
	    npm install --silent --no-audit --no-fund --no-save --prefix $(VENV)/node $(NODE_PACKAGES) \
	        || echo "npm could not install $(NODE_PACKAGES): tests that need them are skipped"; \
	else \
	    echo "npm is missing on this machine: the tests run without $(NODE_PACKAGES)"; \
	fi
	@missing=$$(for each in $(PROGRAMS); do command -v $$each >/dev/null || echo $$each; done); \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update >/dev/null 2>&1 || true; \
	    for each in $$missing; do apt-get install --yes --no-install-recommends $$each >/dev/null 2>&1 || true; done; \
	fi
	@for each in $(PROGRAMS); do \
	    command -v $$each >/dev/null || echo "$$each is missing on this machine: the tests that need it are skipped"; \
	done
	touch $@

# -- targets ----------------------------------------------------------------------------------------------------

demo: $(VENV)/.runtime
	$(VENV)/bin/python examples/demo.py

test: test-suite test-newest

test-suite: $(VENV)/.development $(VENV)/.node
	$(VENV)/bin/python -m pytest -n $(JOBS) -m "not long"

test-newest:
	@if python=$$(.ci/find-python $(NEWEST) 2>/dev/null); then \
	    $(MAKE) test-newest-found NEWEST_PYTHON="$$python"; \
	else \
	    echo "Python $(NEWEST) is missing on this machine: the suite ran on one interpreter only"; \
	fi

test-newest-found: $(NEWEST_VENV)/.test
	$(NEWEST_VENV)/bin/python -m pytest -n $(JOBS) -m "not long" $(wildcard $(NEWEST_TESTS)) $(NEWEST_DESELECT)

$(NEWEST_VENV)/.test: pyproject.toml
	test -e $(NEWEST_VENV)/bin/python || "$(NEWEST_PYTHON)" -m venv $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(NEWEST_VENV)/bin/python -m pip install --quiet --editable . --group test
	touch $@

test-long: $(VENV)/.development
	HYPOTHESIS_PROFILE=long $(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal -m long --timeout 3600
	$(MAKE) test-newest NEWEST_TESTS="$(NEWEST_TESTS_LONG)" NEWEST_DESELECT=
	$(MAKE) test-training

test-training: $(TRAINING_VENV)/.test
	$(TRAINING_VENV)/bin/python -m pytest $(TRAINING_TESTS) --timeout 600

$(TRAINING_VENV)/.test: $(VENV)/.created pyproject.toml
	test -e $(TRAINING_VENV)/bin/python || $(VENV)/bin/python -m venv $(TRAINING_VENV)
	$(TRAINING_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(TRAINING_VENV)/bin/python -m pip install --quiet --editable . --group test --group training
	touch $@

check: check-format check-lint check-types check-docs

check-format: $(VENV)/.development
	$(VENV)/bin/ruff format --check $(LINTED)

check-lint: $(VENV)/.development
	$(VENV)/bin/ruff check $(LINTED)

check-types: $(VENV)/.development
	$(VENV)/bin/mypy

check-docs: $(VENV)/.development
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

format: $(VENV)/.development
	$(VENV)/bin/ruff check --fix $(LINTED)
	$(VENV)/bin/ruff format $(LINTED)

docs: $(VENV)/.development
	$(VENV)/bin/mkdocs build --strict

bench: $(VENV)/.development
	$(VENV)/bin/python -m benchmarks.run
	$(VENV)/bin/python -m benchmarks.space.run
	@if python=$$(.ci/find-python $(NEWEST) 2>/dev/null); then \
	    $(MAKE) $(NEWEST_VENV)/.test NEWEST_PYTHON="$$python" \
	        && $(NEWEST_VENV)/bin/python -m benchmarks.space.run; \
	else \
	    echo "Python $(NEWEST) is missing on this machine: random cells were measured on one interpreter only"; \
	fi

clean:
	rm -rf $(VENV) $(NEWEST_VENV) $(TRAINING_VENV) site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

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
LINTED := fsstore tests benchmarks examples docs conftest.py .ci/check_release.py

# Tests that are about the interpreter rather than about the source text or the memory that is taken.
# Those beside other libraries are run by `make test-long`: both together take half as long as the whole suite.
NEWEST_TESTS := tests/unit tests/contract tests/docs/test_comparison.py
# The servers of other authors are among the latter, too.
SERVER_TESTS := tests/contract/test_real_servers.py tests/contract/test_cloud_emulators.py
NEWEST_TESTS_LONG := tests/interop $(SERVER_TESTS)
NEWEST_DESELECT := $(addprefix --ignore=tests/unit/test_,house_style.py packaging.py chunked_memory.py) \
    $(addprefix --ignore=,$(SERVER_TESTS))

# What trains (PyTorch, JAX) is larger than everything else together: its tests have an environment of their own.
TRAINING_VENV := .venv-training
TRAINING_TESTS := tests/interop/test_torch.py tests/interop/test_orbax.py tests/interop/test_multiscale.py

# The smallest versions that pass the unit tests; and what is to come.
OLDEST_VENV := .venv-oldest
OLDEST_DESELECT := $(addprefix --ignore=tests/unit/test_,house_style.py packaging.py imports.py ledger.py)
# Programs that know fsspec, beside older versions of it and of each other; the tests left out need a newer fsspec: 2024.9
# to list below a directory, 2024.10 to choose the writer of parquet, and 2025.5 to copy between filesystems.
OLDER_VENV := .venv-older
OLDER_TESTS := $(addprefix tests/interop/test_,older_programs.py fsspec_workflows.py fsspec_references.py) \
    tests/fault/test_filesystem_faults.py
OLDER_DESELECT := mapper and test_listings or pyarrow and test_sets or GenericFileSystem or rsync
COMING_VENV := .venv-coming

.PHONY: help demo test test-suite test-newest test-newest-found test-oldest test-older test-coming test-long test-training bench
.PHONY: check check-format check-lint check-types check-workflows check-docs format docs release-dry-run clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       open arrays by URL; installs only what fsstore itself needs"
	@echo "make test       the whole test suite, and its core on Python $(NEWEST)"
	@echo "make test-long  the tests that loop for minutes, and those beside other libraries on Python $(NEWEST)"
	@echo "make test-newest PYTHON=python3.14  the core of the suite on another interpreter"
	@echo "make test-oldest  the unit tests with the smallest versions that pass them"
	@echo "make test-older  programs that know fsspec, beside older versions of it"
	@echo "make test-coming  the core of the suite with what is not released yet"
	@echo "make test-training  the tests beside PyTorch, JAX and the libraries of OME-Zarr"
	@echo "make check      format, lint, types, docs"
	@echo "make format     rewrite the source as the formatter wants it"
	@echo "make docs       build the documentation into site/"
	@echo "make release-dry-run  build and check what a release would publish"
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

# `make test-newest PYTHON=python3.14` runs the same on that interpreter, in an environment of its own.
test-newest:
	@if [ -n "$(PYTHON)" ]; then \
	    tag=$$("$(PYTHON)" -c "import sys, sysconfig; print('%d.%d' % sys.version_info[:2] \
	        + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))") \
	        && $(MAKE) test-newest-found NEWEST_PYTHON="$(PYTHON)" NEWEST_VENV=".venv-$$tag"; \
	elif python=$$(.ci/find-python $(NEWEST) 2>/dev/null); then \
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

test-older: $(OLDER_VENV)/.test
	$(OLDER_VENV)/bin/python -m pytest $(OLDER_TESTS) -k "not ($(OLDER_DESELECT))"

$(OLDER_VENV)/.test: pyproject.toml
	python=$$(.ci/find-python 3.11) && "$$python" -m venv $(OLDER_VENV)
	$(OLDER_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(OLDER_VENV)/bin/python -m pip install --quiet --editable . --group older
	touch $@

test-oldest: $(OLDEST_VENV)/.test
	$(OLDEST_VENV)/bin/python -m pytest -n $(JOBS) -m "not long" tests/unit $(OLDEST_DESELECT)

$(OLDEST_VENV)/.test: pyproject.toml .ci/oldest.txt
	python=$$(.ci/find-python 3.11) && "$$python" -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(OLDEST_VENV)/bin/python -m pip install --quiet --editable . --group oldest --constraint .ci/oldest.txt
	touch $@

# Pre-releases are taken wherever there are any; what is pinned for the comparisons stays.
test-coming:
	python=$$(.ci/find-python $(NEWEST)) && "$$python" -m venv $(COMING_VENV)
	$(COMING_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(COMING_VENV)/bin/python -m pip install --quiet --pre --upgrade --editable . --group test
	$(COMING_VENV)/bin/python -m pytest -n $(JOBS) -m "not long" $(NEWEST_TESTS) $(NEWEST_DESELECT)

test-long: $(VENV)/.development $(VENV)/.node
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

check: check-format check-lint check-types check-workflows check-docs

check-format: $(VENV)/.development
	$(VENV)/bin/ruff format --check $(LINTED)

check-lint: $(VENV)/.development
	$(VENV)/bin/ruff check $(LINTED)

check-types: $(VENV)/.development
	$(VENV)/bin/mypy

check-workflows: $(VENV)/.development
	$(VENV)/bin/zizmor --offline --quiet .

check-docs: $(VENV)/.development
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

format: $(VENV)/.development
	$(VENV)/bin/ruff check --fix $(LINTED)
	$(VENV)/bin/ruff format $(LINTED)

docs: $(VENV)/.development
	$(VENV)/bin/mkdocs build --strict

release-dry-run: $(VENV)/.development
	rm -rf dist
	$(VENV)/bin/python -m build --quiet
	$(VENV)/bin/python .ci/check_release.py "v$$($(VENV)/bin/python -c 'import fsstore; print(fsstore.__version__)')" dist
	$(VENV)/bin/python -m twine check --strict dist/*

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
	rm -rf .venv .venv-* site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

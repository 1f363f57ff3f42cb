# make check    lint, types and the fast tests, in about three minutes: what to run before every commit
# make test     lint, types and all tests, in about a quarter of an hour
# make browser  installs Chromium (Debian, as root), without which the tests of the page are skipped
# make demo     trains a small translator, in about a minute
# make help     lists the rest
#
# Every target sets up .venv when needed.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lint check test browser demo docs bench clean

# The first Python on this machine that is new enough; `make PYTHON=/path/to/python test` takes another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	if $$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then echo $$python; break; fi; done)

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two test processes: more gain little, as each loads torch. The tests divide the cores among them.
WORKERS ?= 2
# The bounded, repeatable profile of Hypothesis, unless another is asked for: REGARD_HYPOTHESIS=long make test
PROFILE = ci
PYTEST = REGARD_HYPOTHESIS="$${REGARD_HYPOTHESIS:-$(PROFILE)}" $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup

help:
	@echo 'make check     lint, types and the fast tests, in about three minutes'
	@echo 'make test      lint, types and all tests, in about a quarter of an hour'
	@echo 'make browser   Chromium for the tests of the page (Debian, as root)'
	@echo 'make demo      train a small translator, in about a minute'
	@echo 'make docs      the documentation as a site, in build/site'
	@echo 'make lint      ruff and mypy only'
	@echo 'make bench     every benchmark in benchmarks/'
	@echo 'make setup     only .venv, with regard and the versions of constraints.txt'
	@echo 'make clean     remove .venv and all caches'

setup: $(STAMP)

# Installed anew only when the requirements change. Code is not copied (-e), so editing it needs no install.
$(STAMP): pyproject.toml constraints.txt
	@$(if $(PYTHON),$(PYTHON),false) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
		echo 'regard needs Python 3.11 or newer, and $(if $(PYTHON),"$(PYTHON)" is not,none was found).' \
			'Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo 'Could not make $(VENV). Some systems package the venv module apart (python3-venv).' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

# The tests of the page run in Chromium, and are skipped without it: the last lines of `make test` say how many.
CHROMIUM = $(shell for name in chromium chromium-browser google-chrome; do command -v $$name && break; done)
browser:
	@if test -n "$(CHROMIUM)"; then echo 'Chromium is installed: $(CHROMIUM)'; exit 0; fi; \
	if test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null; then \
		echo 'make browser installs Chromium on Debian and Ubuntu, as root. Elsewhere, install Chromium yourself.' >&2; \
		exit 1; fi; \
	apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }

check: PROFILE = quick
check: lint
	$(PYTEST) -m "not slow and not thorough and not browser"

test: lint
	$(PYTEST)

demo: $(STAMP)
	@$(BIN)/regard demo

# The builder of the site is apart from what the tests need, and installed when it is first asked for.
BUILDER := $(VENV)/.builder
$(BUILDER): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(BUILDER)
	@$(BIN)/python docs/included.py
	@$(BIN)/python docs/reference.py
	@$(BIN)/python docs/live.py
	@PYTHONPATH=docs $(BIN)/zensical build --clean --strict
	@echo 'Open build/site/index.html'

bench: $(STAMP)
	@for file in benchmarks/[!_]*.py; do \
		test -e "$$file" || { echo 'benchmarks/ holds no benchmark.'; break; }; \
		echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

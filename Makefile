# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test test-all test-hosts test-hosts-short lint types layers docs check clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@# torch first and by its exact version: on some indexes a range would fetch a build with CUDA, several GB
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## nine methods on real data, about a minute
	$(BIN)/fedkin demo

test: $(STAMP)  ## the tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(STAMP)  ## the tests and those that take long, such as every rule of the contract at every setting: before a release
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not hosts"

test-hosts: $(STAMP)  ## the tests over real sockets, 30 kills and 200 rounds with faults among them: hours (FEDKIN_KILLS=3 FEDKIN_SOAK=20: fewer)
	$(BIN)/python -m pytest -m hosts

test-hosts-short: $(STAMP)  ## a few of them: parity, a hostile client, two kills, ten rounds with faults
	$(BIN)/python -m pytest -m "hosts and short"

lint: $(STAMP)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## strict type check
	$(BIN)/mypy

layers: $(STAMP)  ## who may import whom
	$(BIN)/lint-imports

docs: $(STAMP)  ## the documentation site, in site/; needs no network
	$(BIN)/mkdocs build --strict

check: lint types layers test  ## all of it

clean:  ## removes the environment and caches
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

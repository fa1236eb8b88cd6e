# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# LOCK=no installs by constraints.txt alone, without hashes: for a platform, a Python or a build of torch that lock/ lacks
LOCK   ?= yes
# wheels only: a source package would run code of its own to install itself
HASHED := $(PIP) --no-deps --require-hashes --only-binary :all: --requirement
MINUTES ?= 4
# tests start many programs, and each would compile fedkin anew where the environment forbids to keep compiled modules
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all test-hosts test-hosts-short fuzz lint types layers docs check budget lock licences audit clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 12

$(STAMP): pyproject.toml packages/fedkin-hosts/pyproject.toml constraints.txt lock/cpu.txt lock/base.txt lock/cuda.txt
	$(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),yes)
	@# torch first, as the build without CUDA where the configured index offers it: the other one takes 6 GB
	$(HASHED) lock/cpu.txt 2>/dev/null || echo 'the index offers no build of torch without CUDA that lock/cpu.txt knows; taking its own'
	$(HASHED) lock/base.txt \
	  || { echo 'lock/ does not fit here, or a package is not what it was: look at the message above. Without hashes: make LOCK=no'; exit 1; }
	if $(BIN)/python lock/needs_cuda.py; then $(HASHED) lock/cuda.txt; fi
	$(PIP) --no-deps --no-build-isolation --editable . --editable packages/fedkin-hosts
else
	@# torch first and by its exact version: on some indexes a range would fetch a build with CUDA, several GB
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) --constraint constraints.txt --editable '.[dev]' --editable packages/fedkin-hosts
endif
	@touch $@

demo: $(STAMP)  ## ten methods on real data, about a minute
	$(BIN)/fedkin demo

test: $(STAMP)  ## the tests
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=15

test-all: $(STAMP)  ## the tests and those that take long, such as every rule of the contract at every setting: before a release
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=15 -m "not hosts"

test-hosts: $(STAMP)  ## the tests over real sockets, 30 kills and 200 rounds with faults among them: hours (FEDKIN_KILLS=3 FEDKIN_SOAK=20: fewer)
	$(BIN)/python -m pytest -m hosts

test-hosts-short: $(STAMP)  ## a few of them: parity, a hostile client, five kills of the simulator
	$(BIN)/python -m pytest -m "hosts and short"

fuzz: $(STAMP)  ## damaged and hostile files and letters, each refused by a message of fedkin's: MINUTES=4 by default
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

lint: $(STAMP)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## strict type check
	$(BIN)/mypy

layers: $(STAMP)  ## who may import whom
	$(BIN)/lint-imports

docs: $(STAMP)  ## the documentation site, in site/; needs no network
	PYTHONPATH=docs $(BIN)/zensical build --strict --clean

check: lint types layers test  ## all of it

budget: $(STAMP)  ## lowers budget.toml to what is counted, after a change that frees room
	$(BIN)/python -m tests.budget

lock: $(STAMP)  ## makes lock/ anew after a change of pyproject.toml or constraints.txt; needs the package index
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python lock/make.py

licences: $(STAMP)  ## the licence of every package of the environment
	$(BIN)/python lock/licences.py

audit: $(STAMP)  ## published weaknesses of the packages in lock/; needs the network
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement lock/base.txt --requirement lock/cuda.txt

clean:  ## removes the environment and caches
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

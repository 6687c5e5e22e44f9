# The developer's commands. Everything runs from .venv, which `make install` creates.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)

PYTEST_WORKERS ?= 2
LOCKED := constraints.txt pyproject.toml tools/install.sh protos/hatch_build.py \
	$(wildcard protos/pyproject.toml services/*/pyproject.toml tools/*/pyproject.toml) \
	$(shell find protos -name '*.proto')

.PHONY: help install up down lint test test-slow test-compose release bench-gpu kernels-table peers clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+.*:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  make bench-NAME   run benchmarks/NAME.py"

install: .venv/.installed  ## create .venv and install everything under the lock (TORCH_INDEX=URL, PYTHON=python3.12)

.venv/.installed: $(LOCKED)
	@tools/install.sh

up: install  ## start the platform on this host and stream one answer
	headrace up --detach
	headrace chat --temperature 0 "What is the capital of France?"

down:  ## stop what `make up` started
	@if command -v headrace >/dev/null; then headrace down; else echo "nothing is installed: see make install"; fi

lint: install  ## ruff, mypy, the import contracts, buf, no secrets
	ruff check
	ruff format --check
	mypy
	lint-imports
	tools/lint_protos.sh
	python -m tools.secret_scan

test: lint  ## everything that has to pass before a commit
	pytest -n $(PYTEST_WORKERS) --dist loadfile --durations 5 --durations-min 2 -m "not slow and not gpu and not compose"

test-slow: .venv/.installed-slow  ## long and timing-dependent tests
	pytest -m slow -o faulthandler_timeout=3600

test-compose: install  ## the compose stack and its page on a real Docker engine
	pytest -m compose -v --durations 5 -o faulthandler_timeout=7200 tests/compose

release: .venv/.installed-release  ## wheels, bills of materials and the audit of the lock, into dist/
	tools/release.sh

.venv/.installed-release: .venv/.installed
	python -m pip install -q --no-input --disable-pip-version-check -c constraints.txt --group release
	@touch $@

.venv/.installed-slow: .venv/.installed
	python -m pip install -q --no-input --disable-pip-version-check -c constraints.txt --group slow
	@touch $@

bench-gpu:  ## kernels, steps and the engine on one GPU, in 8 minutes; needs torch and triton alone (PYTHON=python3)
	benchmarks/gpu/run.sh

bench-%:
	@test -f benchmarks/$*.py || { echo "there is no benchmark '$*': benchmarks/$*.py does not exist" >&2; exit 2; }
	@$(MAKE) install
	python -m benchmarks.$*

kernels-table: install  ## registers and shared memory of every kernel on every card, compiled here; fails on spills
	python -m headrace_worker.kernels.compiled > benchmarks/results/kernels.md.new
	mv benchmarks/results/kernels.md.new benchmarks/results/kernels.md

peers: install  ## install the programs that benchmarks compare with, each into its own environment
	tools/peers.sh

clean:  ## remove caches, build output and generated stubs (.venv stays)
	find . -name .venv -prune -o -type d \( -name __pycache__ -o -name build -o -name dist \) -print0 | xargs -0 rm -rf
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .venv/.installed .venv/.installed-slow .venv/.installed-release
	find protos -name '*_pb2*.py' -delete -o -name '*_pb2.pyi' -delete

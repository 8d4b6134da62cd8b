# lmerge-service: `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ENGINE ?= yes
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

unexport PYTHONDONTWRITEBYTECODE  # else each process that a test starts compiles all of it anew

.DEFAULT_GOAL := help
.PHONY: help demo engine test test-full test-deep test-mutants lint bench bench-service bench-queries soak rolling kill-loop lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: $(VENV)/.demo $(VENV)/.engine  ## merge three replicas of a month of flights through a local Kafka
	@$(BIN)/lmerge demo $(ARGS)

engine: $(VENV)/.engine  ## the native engine, where there is cargo; ENGINE=no leaves it out

test: $(VENV)/.dev $(VENV)/.engine lint  ## lint, types, tests: properties, simulation, a representative on Kafka and Spark
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not full and not deep" $(ARGS)

test-full: $(VENV)/.dev $(VENV)/.engine  ## what `make test` leaves out since it takes long; run both before a change lands
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "full and not deep" $(ARGS)

test-deep: $(VENV)/.dev $(VENV)/.engine  ## nightly depth: the same properties, many more examples
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n 3 --dist loadgroup $(ARGS)

test-mutants: $(VENV)/.dev  ## a sample of all one-line mistakes where elements pass: the tests must notice each
	$(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev $(VENV)/.engine  ## rates beside a pass-through, the paper's figures, the policies
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks figures
	$(BIN)/python -m benchmarks availability
	$(BIN)/python -m benchmarks forward
	$(BIN)/python -m benchmarks policies

bench-service: $(VENV)/.dev $(VENV)/.engine  ## worker processes on a local broker: rates, memory, latency, recovery
	$(BIN)/python -m benchmarks service $(ARGS)

bench-queries: $(VENV)/.dev  ## the operators of queries: rates, stables, memory; two libraries beside them
	@$(PIP) --require-hashes -r requirements/comparison.txt
	$(BIN)/python -m benchmarks queries $(ARGS)

soak: $(VENV)/.dev  ## MINUTES=10 of restarts and kills under load: leaks, and the audit at the end
	$(BIN)/python -m benchmarks soak --minutes $(or $(MINUTES),10) $(ARGS)

rolling: $(VENV)/.dev  ## MINUTES=10 of workers restarted in turn under load: silence, the audit
	$(BIN)/python -m benchmarks rolling --minutes $(or $(MINUTES),10) $(ARGS)

kill-loop: $(VENV)/.dev  ## MINUTES=10 of workers and three brokers killed and frozen; the audit
	$(BIN)/python -m benchmarks kill-loop --minutes $(or $(MINUTES),10) $(ARGS)

lock: $(VENV)/.dev  ## resolve the dependencies anew
	$(PIP) uv
	PATH="$(CURDIR)/$(BIN):$$PATH" requirements/lock.sh

clean:  ## remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis engine/target

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed, '$(PYTHON)' is older: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: requirements/demo.txt pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements/demo.txt
	@$(PIP) --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --no-deps -e .
	@touch $@ $(VENV)/.demo

$(VENV)/.engine: engine/Cargo.toml engine/Cargo.lock engine/pyproject.toml $(wildcard engine/src/*.rs) | $(BIN)/python
	@if [ "$(ENGINE)" = no ]; then echo "without the engine: Python merges"; \
	elif ! cargo --version >/dev/null 2>&1; then echo "there is no cargo that works, so no engine: Python merges"; \
	else echo "building the engine, which takes half a minute (ENGINE=no leaves it out) ..." && \
		$(PIP) --force-reinstall --no-deps ./engine; fi
	@touch $@

# `make demo` and `make test` do all the set-up themselves, in .venv. Elsewhere a CPU build of torch for the tests:
#   make test TORCH_INDEX=https://... (a pip index that carries one)
PYTHON ?= python3
TORCH_INDEX ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
NATIVE := CMakeLists.txt pyproject.toml $(shell find native -name '*.cpp' -o -name '*.h')

.PHONY: demo test lint format docs soak bench clean

demo: $(VENV)/.demo
	$(BIN)/octavo demo

test: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Long loops, for hours when nobody waits.
soak: $(VENV)/.test
	OCTAVO_SOAK=1 $(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(filter native/%,$(NATIVE))

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter native/%,$(NATIVE))

# Pages that are written from the code.
docs: $(VENV)/.demo
	$(BIN)/python docs/supported_models.py

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.engine

clean:
	rm -rf $(VENV) build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip

# Editable, so that a change to a Python file needs no install; a change to a native one does, and make sees to it.
$(VENV)/.demo: $(BIN)/python $(NATIVE)
	$(PIP) install -q -e .
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(if $(TORCH_INDEX),$(PIP) install -q torch==2.13.0 --index-url $(TORCH_INDEX),)
	$(PIP) install -q -e '.[test]'
	touch $@

# `make demo` and `make test` do all the set-up on a machine with Python 3.11+, pip and make.
PYTHON ?= python3
VENV   := .venv
CONSTRAINTS ?= -c constraints.txt
BIN    := $(VENV)/bin

# Datasets that may not be shipped are looked for here (see `counterpoise datasets`).
ifneq ($(wildcard ../shared/data),)
export COUNTERPOISE_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-all faults fuzz lint audit format docs pictures notebook bench results clean

demo: $(VENV)/core
	$(BIN)/counterpoise demo

test: $(VENV)/dev
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow"

test-all: $(VENV)/dev
	$(BIN)/pytest -n 2 --dist loadgroup

faults: $(VENV)/dev
	$(BIN)/python tests/faults.py

fuzz: $(VENV)/dev
	$(BIN)/python tests/fuzzing.py
	COUNTERPOISE_EXAMPLES=500 $(BIN)/pytest tests/test_fuzz.py tests/data/test_reading.py

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit -q -c pyproject.toml -r src

audit: $(VENV)/dev
	$(BIN)/pip-audit

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(VENV)/docs
	$(BIN)/python docs/pictures.py

notebook: $(VENV)/notebook
	$(BIN)/jupyter-execute --inplace docs/notebooks/*.ipynb

bench: $(VENV)/dev
	$(BIN)/python benchmarks/run.py

results: $(VENV)/dev
	$(BIN)/python benchmarks/results.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[dev]"
	touch $@

$(VENV)/docs $(VENV)/notebook: $(VENV)/core
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[$(@F)]"
	touch $@

clean:
	rm -rf site $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

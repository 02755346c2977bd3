# `make demo` and `make test` do all the set-up on a machine with Python 3.11+, pip and make.
PYTHON  ?= python3
VENV    := .venv
WORKERS ?= 2
BIN     := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP     := $(BIN)/python -m pip install --quiet

# requirements.lock has the versions that the tests were last run with, and their hashes. `pip install -e` takes the
# versions only: an editable install has no hash, and torch has a build without CUDA, of the same version, elsewhere.
CONSTRAINTS ?= $(VENV)/constraints.txt
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --python-version 3.11

# Datasets that may not be shipped are looked for here (see `counterpoise datasets`).
ifneq ($(wildcard ../shared/data),)
export COUNTERPOISE_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-all test-lowest test-newest coverage mutation faults fuzz lint audit format docs pictures \
  notebook bench reproduce reproduce-quick lock lock-check dist dist-check release-check sbom clean

demo: $(VENV)/core
	$(BIN)/counterpoise demo

test: $(VENV)/dev
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow"

# Pictures of the report, the served page and the documentation, as a browser shows them, go to artifacts/screenshots.
test-all: $(VENV)/dev
	COUNTERPOISE_SCREENSHOTS=artifacts/screenshots $(BIN)/pytest -n $(WORKERS) --dist loadgroup

# The lowest versions of pyproject.toml, and the newest that there are. TORCH=torch==2.13.0 takes that one in both.
TORCH ?= torch

test-lowest: $(VENV)/release
	mkdir -p $(VENV)-lowest
	echo "$(TORCH)" > $(VENV)-lowest/torch.txt
	$(COMPILE) --extra dev --resolution lowest-direct -c $(VENV)-lowest/torch.txt -o $(VENV)-lowest/versions.txt
	$(MAKE) test VENV=$(VENV)-lowest CONSTRAINTS=$(VENV)-lowest/versions.txt

test-newest:
	mkdir -p $(VENV)-newest
	echo "$(TORCH)" > $(VENV)-newest/versions.txt
	$(MAKE) test VENV=$(VENV)-newest CONSTRAINTS=$(VENV)-newest/versions.txt

# Fails where less than 95% of the branches of src are taken.
coverage: $(VENV)/dev
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered --cov-report=json
	$(BIN)/python tests/branches.py .cache/coverage.json 95

# Do the tests notice mistakes in balance/ and risks.py? Hours; MUTATION="risks --sample 50" takes a part.
mutation: $(VENV)/dev
	nice $(BIN)/python tests/mutation.py --jobs $(WORKERS) $(MUTATION)

faults: $(VENV)/dev
	$(BIN)/python tests/faults.py

# Other inputs each day; SEED=20261119 those of that day. One that breaks a promise is kept in tests/findings.
fuzz: $(VENV)/dev
	$(BIN)/python tests/fuzzing.py $(if $(SEED),--seed $(SEED))
	COUNTERPOISE_EXAMPLES=500 $(BIN)/pytest tests/test_fuzz.py tests/data/test_reading.py

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit -q -c pyproject.toml -r src

audit: $(VENV)/dev
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

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

# Every number of README.md and docs/results.md, and which differ. Needs the Coat ratings and hours; JOBS= cores.
JOBS ?= $(WORKERS)

reproduce: $(VENV)/dev
	$(BIN)/python benchmarks/results.py --jobs $(JOBS)

reproduce-quick: $(VENV)/dev
	$(BIN)/python benchmarks/results.py --jobs $(JOBS) --quick --out results/quick

# LOCK=--upgrade takes the newest versions, LOCK="--upgrade-package NAME" that of one package.
lock: $(VENV)/release
	$(COMPILE) --all-extras --universal --generate-hashes --no-annotate --custom-compile-command "make lock" $(LOCK) \
	  --output-file requirements.lock

lock-check: lock
	git diff --exit-code requirements.lock

dist: $(VENV)/release
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# In an environment of its own, outside of the repository, with nothing but Python. Writes dist/sbom.json.
dist-check: dist
	$(BIN)/python tests/installed.py dist $(CONSTRAINTS)

sbom: dist-check

release-check: $(VENV)/dev
	$(BIN)/python tests/release.py $(TAG)

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(VENV)/constraints.txt: requirements.lock $(VENV)/pyvenv.cfg
	sed '/^ *--hash/d; s/ \\$$//' $< > $@

$(VENV)/core: $(VENV)/pyvenv.cfg pyproject.toml $(CONSTRAINTS)
	$(PIP) -c $(CONSTRAINTS) -e .
	touch $@

$(VENV)/dev $(VENV)/docs $(VENV)/notebook $(VENV)/release: $(VENV)/core
	$(PIP) -c $(CONSTRAINTS) -e ".[$(@F)]"
	touch $@

clean:
	rm -rf site dist $(VENV) $(VENV)-lowest $(VENV)-newest .pytest_cache .mypy_cache .ruff_cache .hypothesis

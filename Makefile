# Two commands matter: `make train` and `make test`. Both set the environment up first.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.libra-setup
# A warning about folders that pip ignores is noise of shared machines, not a problem of the set.
QUIET := 2> >(grep -vE 'WARNING: (Location|Cache entry|The directory|Retrying)|notice' >&2 || true)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# PyPI's torch is the CUDA build (3 GB); a wheel in PIP_FIND_LINKS is taken before the index is needed.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

.PHONY: setup train test unit core integration slow check format docs ui clean

setup: $(STAMP)

$(STAMP): requirements/cpu.lock pyproject.toml
	@key=$$(cat requirements/cpu.lock pyproject.toml | sha256sum | cut -d' ' -f1); \
	if [ "$$(cat $(STAMP) 2>/dev/null)" = "$$key" ]; then touch $(STAMP); exit 0; fi; \
	set -e; \
	[ -x $(BIN)/python ] || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }; \
	echo "installing requirements/cpu.lock (about 2 GB, a few minutes the first time)"; \
	$(PIP) install --quiet --no-deps --retries 1 --index-url $(TORCH_INDEX) "$$(grep '^torch==' requirements/cpu.lock)" $(QUIET); \
	$(PIP) install --quiet --no-deps -r requirements/cpu.lock $(QUIET); \
	$(PIP) install --quiet --no-deps --editable . $(QUIET); \
	echo "$$key" > $(STAMP); echo "ready: $(BIN)/libra"

train: setup
	$(BIN)/libra train configs/experiment/quickstart.yaml

# Says within five minutes whether the whole holds; `make integration` runs the rest.
test: unit core

unit: setup
	$(PYTEST) tests/unit -m "not slow" -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

core: setup
	$(PYTEST) tests/integration -m "core and not slow" --timeout=600

integration: setup
	$(PYTEST) tests/integration -m "not core and not slow" --timeout=600

slow: setup
	$(PYTEST) tests -m slow --timeout=1800

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python tests/checks/limits.py
	$(BIN)/python tests/checks/references.py
	$(BIN)/python tests/checks/waits.py
	$(BIN)/python tests/checks/words.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/libra docs config > docs/configuration.md
	$(BIN)/libra docs metrics > docs/metrics.md

# Prefect on http://127.0.0.1:4200, MLflow on http://127.0.0.1:5000; Ctrl-C ends both.
ui: setup
	$(BIN)/libra ui

clean:
	rm -rf build .pytest_cache .ruff_cache .import_linter_cache

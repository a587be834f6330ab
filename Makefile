# make demo | test | lint | bench | clean: each sets up .venv with nothing but python3, and only when needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto

.PHONY: demo test lint format bench clean

demo: $(READY)
	$(BIN)/dpadmm demo

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: $(READY)
	$(BIN)/python benchmarks/bench.py

# installs again only when what is to be installed has changed
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("dpadmm needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

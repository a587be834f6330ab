# make demo | federation-demo | image | dist | test | torture | mutants | mutation | fuzz | lint | docs | reproduce | reproduction-report | bench | bench-peers | accuracy | peers | adult | clean:
# each creates .venv if needed, and requires only python3.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RELEASE := .release
DOCS_READY := $(VENV)/.docs-ready
# 1.5 workers per core, because tests of processes, brokers and browsers often wait
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 2) * 3 // 2)')
COMMIT = $(shell git rev-parse HEAD 2>/dev/null || echo none)
BASE = $(or $(filter-out $(COMMIT),$(shell git merge-base HEAD origin/HEAD 2>/dev/null)),HEAD~1)
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

.PHONY: dist accuracy peers adult demo federation-demo test torture mutants mutation mutation-sample fuzz reproduce reproduction-report browser strace image lint format docs bench bench-peers clean

demo: $(READY)
	$(BIN)/dpadmm demo

# ten sites as local processes with real certificates; under a minute
federation-demo: $(READY)
	$(BIN)/dpadmm demo --federated

# One BLAS thread per worker, because more would wait for each other. Bytecode is written even if the environment
# disables it: otherwise hundreds of test processes would compile the package. The built site is tested too.
test: docs browser strace image
	PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# the long version of the fault tests: 10,000 kills each of ledger and guard, 10,000 flips and truncations of each,
# 100,000 malformed requests, every write, 3 × 200 kills of sites, server and broker; about an hour
torture: $(READY) strace
	DPADMM_TORTURE=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests/faults tests/accounting tests/properties

# inject known bugs into the agent, one by one; the audit must detect each
mutants: $(READY)
	$(BIN)/python tests/audit/mutants.py

# fuzz every reader for half a minute; inputs that fail or reach a new branch are kept
fuzz: $(READY)
	$(BIN)/python tests/fuzz/make_corpus.py --seconds 30

# mutation tests of privacy-critical code (docs/decisions/0013)
# about an hour; one file: make mutation MUTATION="--files trusted/guard.py"
mutation: $(READY)
	PYTHONPATH=src:tests $(BIN)/python -m mutation $(MUTATION)

# two minutes of mutation tests: of changed files if there are any, otherwise selected by the commit's hash
mutation-sample: $(READY)
	PYTHONPATH=src:tests $(BIN)/python -m mutation --seconds 110 --changed $(BASE) --sample $(COMMIT) $(MUTATION)

# Chromium for the browser tests; without it they are skipped (and fail if CI=true)
browser:
	@for each in $(BROWSERS); do if command -v $$each >/dev/null 2>&1; then exit 0; fi; done; \
	command -v apt-get >/dev/null 2>&1 || exit 0; \
	if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	echo "installing chromium for the tests of the report"; \
	{ $$sudo apt-get update && $$sudo apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	|| echo "chromium could not be installed; the report's browser tests will be skipped"

# strace records the order in which a ledger's files are written and synced, and systemd-analyze verifies the units;
# skipped as above
strace:
	@if command -v strace >/dev/null 2>&1 && command -v systemd-analyze >/dev/null 2>&1; then exit 0; fi; \
	command -v apt-get >/dev/null 2>&1 || exit 0; \
	if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	echo "installing strace and systemd for the tests of the ledger and of the units"; \
	{ $$sudo apt-get update && $$sudo apt-get install -y --no-install-recommends strace systemd; } >/dev/null 2>&1 \
	|| echo "strace or systemd could not be installed; the tests that need them will be skipped"

# run the steps of examples/deployment/Dockerfile without a container engine, into .image, and print the sizes;
# if that is not permitted, the tests of the small site install are skipped (and fail if CI=true)
image: $(READY)
	-@$(BIN)/python tests/support/images.py 2>.image.log || tail -3 .image.log

# wheel, sdist and SBOM in dist/: built twice, checked, and installed offline with each extra
dist: $(RELEASE)/.ready
	$(RELEASE)/bin/python release/make.py $(if $(TAG),--tag "$(TAG)")

$(RELEASE)/.ready: release/tools.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -r release/tools.txt
	touch $@

lint: $(READY)
	$(BIN)/ruff check src reproduction tests benchmarks examples release docs tools
	$(BIN)/ruff format --check src reproduction tests benchmarks examples release docs tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/prose_lint.py --quiet

format: $(READY)
	$(BIN)/ruff check --fix src reproduction tests benchmarks examples release docs tools
	$(BIN)/ruff format src reproduction tests benchmarks examples release docs tools

# the paper's experiments with few random splits; with all 10: make reproduce REPEATS=10 PAPER=runs/paper (hours). It can be resumed
REPEATS := 2
PAPER := runs/paper-short
reproduce: $(READY)
	$(BIN)/python -m reproduction run -o $(PAPER) --repeats $(REPEATS)

# one page with claims, figures and tables
reproduction-report: $(READY)
	$(BIN)/python -m reproduction report $(PAPER) -o $(PAPER)/report.html

# the documentation site into docs/_build/html: runs every tutorial and checks every internal link; warnings are errors
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -n -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(READY)
	$(BIN)/python benchmarks/bench.py

# times compared with torch, Opacus, diffprivlib and scikit-learn, and a model of the time of a round: docs/explanation/performance.md
bench-peers: $(READY)
	$(BIN)/python benchmarks/peers/speed.py

# auto compared with all methods on 30 data sets; hours, can be resumed
accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy -o runs/accuracy
	cp runs/accuracy/accuracy.md docs/explanation/accuracy.md

# other libraries on the same rows, in separate environments in .peers
peers: $(READY)
	$(BIN)/python -m benchmarks.peers.run -o runs/accuracy

# Adult with 100 agents, compared with Opacus on pooled rows (docs/explanation/secure-aggregation.md); an hour
adult: $(READY)
	$(BIN)/python -m benchmarks.peers.adult

# reinstalls only if the requirements have changed
$(READY): pyproject.toml constraints.txt src/dpadmm/version.py
	$(PYTHON) -c 'import sys; sys.exit("dpadmm needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt axe-playwright-python  # for axe.min.js
	touch $(DOCS_READY)

clean:
	rm -rf $(VENV) .release .peers .image .image.log runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .mutation docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

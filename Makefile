# Everything runs from a virtual environment that `make` creates. Only Python 3.11+, a C library and make are assumed.
#   make demo    train two small networks on digits, compare them, write demo/report.html
#   make test    the whole test suite, doctests and guide pages included
#   make test-fast   for one who edits: tests of what was changed, nearest first, for a minute
#   make test-oldest the whole suite, lint, types and site with the lowest declared versions, in an environment of their own
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST_ARGS ?= -n 2 --dist worksteal

.PHONY: help demo test test-fast test-oldest lint types docs bench networks smoke studies results release clean
help:
	@sed -n 's/^#   //p' Makefile

# PyTorch goes first and alone, so that a build that is already chosen (CPU, CUDA) is never replaced.
$(VENV)/.runtime: requirements/torch.txt requirements/runtime.txt pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "PYTHON must be Python 3.11 or newer. Got $$($(PYTHON) --version). Run: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch, then intertwine's pinned dependencies, into $(VENV) ..."
	@$(PIP) -r requirements/torch.txt
	@$(PIP) -r requirements/torch.txt -r requirements/runtime.txt
	@$(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "Installing the test tools ..."
	@$(PIP) -r requirements/torch.txt -r requirements/runtime.txt -r requirements/dev.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	@echo "Installing the documentation tools ..."
	@$(PIP) -r requirements/torch.txt -r requirements/runtime.txt -r requirements/dev.txt -r requirements/docs.txt
	@touch $@

#   make lint    ruff: style, docstrings, annotations, format
#   make types   mypy
#   make docs    build the site into site/, warnings are errors
#   make bench   every benchmark with its budget
demo: $(VENV)/.runtime
	@$(BIN)/intertwine demo --out demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -m "not slow" --seconds 45 $(PYTEST_ARGS) $$($(BIN)/python tests/support/changed_tests.py)

test-oldest:
	@PYTHON=$(PYTHON) bash .ci/bounds lowest

lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev
	@$(BIN)/mypy

docs: $(VENV)/.docs
	@$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	@failed=; for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || failed="$$failed $$file"; done; \
	  test -z "$$failed" || { echo "Over budget or failed:$$failed"; exit 1; }

#   make networks   symmetries of two hundred networks of timm, transformers, torchvision and PyTorch Geometric
$(VENV)/.networks: $(VENV)/.dev requirements/networks.txt
	@echo "Installing timm, torchvision and PyTorch Geometric ..."
	@$(PIP) -r requirements/torch.txt -r requirements/runtime.txt -r requirements/dev.txt -r requirements/networks.txt
	@touch $@

networks: $(VENV)/.networks
	@$(BIN)/python benchmarks/symmetries.py --networks

#   make smoke   every table and figure of the papers at its smallest scale, on one page
smoke: $(VENV)/.runtime
	@$(BIN)/intertwine reproduce --all --scale smoke --workers 2 --against results

#   make studies what the papers leave open: every study at its smallest scale
studies: $(VENV)/.runtime
	@$(BIN)/python studies/run.py --all --scale smoke --workers 2

#   make results results that are older than their code, made again in the order of what they tell for an hour:
#                make results DATA=cifar10:PATH HOURS=2; it goes on where it was stopped
DATA ?= cifar10
HOURS ?= 1000
results: $(VENV)/.dev
	@$(BIN)/python results/remake.py --data $(DATA) --hours $(HOURS)
	@$(BIN)/python results/build.py
	@$(BIN)/python results/fidelity.py

#   make release source distribution and wheel in dist/, checked: metadata, installation in a fresh environment, demo
$(VENV)/.release: $(VENV)/.runtime requirements/release.txt
	@echo "Installing the release tools ..."
	@$(PIP) -r requirements/torch.txt -r requirements/runtime.txt -r requirements/release.txt
	@touch $@

release: $(VENV)/.release
	@rm -rf dist build/release
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@$(BIN)/python -m twine check --strict dist/*
	@$(PYTHON) -m venv build/release
	@build/release/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/torch.txt
	@build/release/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	@cd build/release && bin/intertwine --version && bin/intertwine demo --out demo --quiet
	@echo "dist/ is ready: $$(ls dist | tr '\n' ' ')"

#   make clean   remove the virtual environment and everything built
clean:
	rm -rf $(VENV) site demo reproduction build dist

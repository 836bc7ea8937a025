# Everything runs from .venv, which is rebuilt when the dependencies change.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup quickstart test check clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# Two short trainings and their before/after table, in run folders that do not exist yet.
quickstart: $(STAMP)
	@set -e; n=1; base=runs/quickstart; \
	while [ -e "$$base-egspo_sa" ] || [ -e "$$base-stabledrl" ]; do n=$$((n + 1)); base=runs/quickstart-$$n; done; \
	for algorithm in egspo_sa stabledrl; do \
		$(BIN)/maskgrad train quickstart --algorithm $$algorithm --out "$$base-$$algorithm"; \
	done; \
	$(BIN)/python -m maskgrad.reporting.tables "$$base-egspo_sa" "$$base-stabledrl"

test: $(STAMP)
	@$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Keeps .venv and runs/.
clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

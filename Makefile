PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARALLEL := --no-loadscope-reorder
WORKERS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 2)") # tests of other processes mostly wait

unexport PYTHONDONTWRITEBYTECODE # each process that a test starts would compile the program anew

.PHONY: app test quick lint examples schema screenshots benchmark fuzz soak lock audit clean

app: $(VENV)/.runtime
	$(BIN)/python -m engine serve --detach
	$(BIN)/python app.py

test: $(VENV)/.development lint
	$(BIN)/python -m pytest -n $(WORKERS) $(PARALLEL)

quick: $(VENV)/.development lint
	$(BIN)/python -m pytest -n auto $(PARALLEL) -m "not processes and not whole and not slow"

lint: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

examples: $(VENV)/.runtime
	$(BIN)/python -m engine examples

schema: $(VENV)/.runtime
	$(BIN)/python -m engine schema > assets/report.schema.json

screenshots: $(VENV)/.development
	$(BIN)/python tests/e2e/screenshots.py

benchmark: $(VENV)/.runtime
	$(BIN)/python benchmarks/example.py

fuzz: $(VENV)/.development
	$(BIN)/python -m tests.fuzz --cases 10000

MINUTES ?= 60
SEED ?= 0

soak: $(VENV)/.development
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

lock: $(VENV)/.development
	$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip compile --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" requirements.txt --output-file requirements.lock
	$(BIN)/uv pip compile --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" --constraint requirements.lock deploy/postgresql.txt \
		--output-file deploy/postgresql.lock

audit: $(VENV)/.development
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(BIN)/pip-audit --strict --require-hashes --disable-pip -r requirements.lock -r deploy/postgresql.lock

clean:
	rm -rf $(VENV) .mergelens .pytest_cache .ruff_cache

$(VENV)/.runtime: requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -c "import app, engine.service.forked" # compiles what is used; all would take a minute
	touch $@

$(VENV)/.development: $(VENV)/.runtime requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -r requirements-dev.txt
	touch $@

# `make test` and `make check` are what CI runs. Each target sets up what it needs in .venv; uv is not needed.
PYTHON ?= python3
BIN = .venv/bin
PIP = -m pip install --quiet --disable-pip-version-check -c constraints.txt
# bytecode is written for what is imported, when it is imported first, and not for all that is installed
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test fuzz faults browser check bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

.venv/ready: pyproject.toml requirements-dev.txt constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) --no-compile torch
	$(BIN)/python $(PIP) --no-compile -e . -r requirements-dev.txt
	$(BIN)/python $(PIP) --no-deps netcal==1.4.0  # only its metrics; it warns when it is compiled
	touch .venv/ready

demo: .venv/ready  ## audit, repair, certify and train on real rows, and write demo/report.html
	$(BIN)/calibrant demo

test: .venv/ready  ## every test - tables, properties, doctests, simulations, the page in Chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

browser:  ## install Chromium and chromedriver for the browser tests (Debian)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null

fuzz: .venv/ready  ## random good and bad input for MINUTES (60) with another SEED (1)
	$(BIN)/python tests/fuzz/fuzz.py --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)

faults: .venv/ready  ## kill commands KILLS (200) times, fill the disk, let two write one file
	$(BIN)/python tests/faults/faults.py --kills $(or $(KILLS),200) --seed $(or $(SEED),1)

check: .venv/ready  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.bench-venv/ready: benchmarks/requirements.txt constraints.txt
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/python $(PIP) torch
	.bench-venv/bin/python $(PIP) -r benchmarks/requirements.txt -e .
	touch .bench-venv/ready

bench: .bench-venv/ready  ## speed and memory against other packages, as ratios in one run
	.bench-venv/bin/python benchmarks/speed/metrics.py
	.bench-venv/bin/python benchmarks/speed/calibrators.py
	.bench-venv/bin/python benchmarks/speed/losses.py

clean:  ## remove what make made
	rm -rf .venv .bench-venv demo .mypy_cache .pytest_cache .ruff_cache

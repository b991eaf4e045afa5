# Every target does its own set-up. PYTHON may name any Python from 3.11 on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROOMS := daemon engines registry memory
# Test files that run at the same time.
JOBS ?= 2

# MLX's wheel for Linux carries a slow reference BLAS. Tests and benchmarks preload OpenBLAS where there is one;
# the daemon finds it by itself.
OPENBLAS := $(firstword $(wildcard /usr/lib/*/openblas-pthread/libopenblas.so.0 /usr/lib/*/libopenblas.so.0))
WITH_BLAS := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS))

# The facts of the planner. Its state machine is not one of them: what random runs reach is no coverage.
PLANNER := planner crashes deaths draft exits explain forecast pace ledger placement queue reactions reconfigure remains residency states victims
PLANNER_TESTS := $(filter-out tests/test_planner_machine.py,\
  $(sort $(wildcard tests/test_planner_*.py $(PLANNER:%=tests/test_%.py))))

# The tests of the whole API: all that start a real daemon.
API_TESTS = $(shell grep -lE '^from (daemon_process|clients_daemon) import' tests/test_*.py)

.PHONY: setup demo run check test suite test-process planner-coverage soak bench-setup bench bench-parts fleet memory-table page-shots service-files lock clean

setup: $(STAMP)

$(STAMP): pyproject.toml etc/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mlxd needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint etc/constraints.txt --editable '.[cpu,dev]'
	@touch $@

demo: setup
	$(BIN)/python etc/demo.py

run: setup
	$(BIN)/mlxd serve

build/ns/mlxd:
	mkdir -p build/ns
	ln -sfn ../.. $@

check: setup build/ns/mlxd
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=build/ns $(BIN)/mypy $(ROOMS:%=-p mlxd.%)
	$(BIN)/python -Im pytest tests/test_import_rules.py

# Together: the planner's tests compute on one core, and the others wait for processes a good part of their time.
test: setup
	$(MAKE) -j 2 planner-coverage suite

# All but the planner's own tests.
suite: setup
	$(WITH_BLAS) $(BIN)/python -Im pytest -n $(JOBS) --dist loadfile -m 'not soak' $(PLANNER_TESTS:%=--ignore=%)

# The whole API once more, with each engine in a process of its own.
test-process: setup
	MLXD_ENGINE__ISOLATION=process $(WITH_BLAS) $(BIN)/python -Im pytest -n $(JOBS) --dist loadfile -m 'not soak' $(API_TESTS)

# Fails unless the planner's own tests pass and take every branch of it.
planner-coverage: setup
	@mkdir -p build
	$(BIN)/python -Im coverage run -m pytest $(PLANNER_TESTS)
	$(BIN)/python -Im coverage report

soak: setup test-process
	$(WITH_BLAS) $(BIN)/python -Im pytest -m soak --timeout 3600

bench-setup: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint etc/constraints.txt --editable '.[cpu,dev,bench]'

# What mlxd costs and how it compares: bench/run.py tells of its parts. The figures go into bench/results and docs/.
bench: bench-setup
	$(WITH_BLAS) $(BIN)/python bench/run.py --results bench/results

# Parts with tables of their own: the planner, loads beside work, images, answers of peers, a model on two ranks.
bench-parts: setup
	$(BIN)/python bench/planning.py
	$(WITH_BLAS) $(BIN)/python bench/swaps.py
	$(WITH_BLAS) $(BIN)/python bench/vision.py
	$(WITH_BLAS) $(BIN)/python bench/passing.py
	$(WITH_BLAS) $(BIN)/python bench/split.py

# How requests do over 1 to 1,000 daemons, by the way a daemon is chosen; the plot of it is part of the documentation.
fleet: bench-setup
	$(BIN)/python bench/fleet.py --plot docs/fleet.png

# Measure what prompts cost against what they are priced at, and put the figures into the documentation.
memory-table: setup
	$(WITH_BLAS) $(BIN)/python bench/memory.py --write docs/memory.md

# Screenshots of the page into build/page/: desktop and phone, light and dark.
page-shots: setup
	$(WITH_BLAS) $(BIN)/python tests/page_shots.py

# Write the plain service files of etc/, after a change of what `mlxd service install` writes.
service-files: setup
	$(BIN)/python etc/service_files.py

# Take the versions installed now as the ones that development and CI use.
lock: bench-setup
	$(BIN)/python -m pip freeze --exclude-editable | sort -f > etc/constraints.txt

clean:
	rm -rf $(VENV) build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

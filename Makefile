# Each target sets up what it needs. An interrupted target continues when it is run again.

PYTHON ?= python3
KILLS ?= 200
PY := .venv/bin/python

# A misspelt variable must not start other runs than were meant.
VARIABLES := PYTHON KILLS STUDY SEEDS SCALE CELL RUNS ARGS
ON_COMMAND_LINE := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
UNKNOWN := $(filter-out $(VARIABLES) SHELL MAKEFLAGS,$(ON_COMMAND_LINE))
ifneq ($(UNKNOWN),)
$(error unknown variable $(UNKNOWN); use one of $(VARIABLES))
endif

WHICH = $(foreach study,$(STUDY),--study $(study)) $(if $(SEEDS),--seeds $(SEEDS)) $(AT)
AT = $(if $(SCALE),--scale $(SCALE))
FROM = $(foreach folder,$(RUNS),--runs $(folder))
PIP_INSTALL = install --disable-pip-version-check -c
GPU_NAME = "$$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr -cs 'A-Za-z0-9\n' -)"
STAMPS := results/gpu-check

.DEFAULT_GOAL := help
.PHONY: help setup reproduce smoke status report explain theory bench gpu-check golden lint test test-fast \
	test-engines faults tutorial readme constraints clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.stamp  ## the environment; targets that need it make it themselves
	@echo "ready: . .venv/bin/activate, or make reproduce SEEDS=1"

.venv/.stamp: pyproject.toml constraints.txt
	@echo "setting up .venv (once, a few minutes)"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip $(PIP_INSTALL) constraints.txt -e '.[dev]'
	@touch $@

reproduce: .venv/.stamp  ## data, runs, report [SCALE=... SEEDS=n STUDY="..." ARGS=...]
	@$(PY) scripts/reproduce.py $(WHICH) $(ARGS)

smoke: .venv/.stamp  ## the same at the smoke scale, in two minutes
	@$(PY) scripts/reproduce.py --scale smoke --seeds 1 tracker=none

status: .venv/.stamp  ## done, running, failed, missing runs [STUDY= SCALE= SEEDS=]
	@$(PY) scripts/tools.py status $(WHICH)

report: .venv/.stamp  ## the page and tables, from the records [SCALE= RUNS=folder]
	@$(PY) scripts/report.py $(AT) $(FROM)

explain: .venv/.stamp  ## the runs behind a number [CELL=P1; none: a list; SCALE=]
	@$(PY) scripts/tools.py explain $(AT) $(FROM) $(if $(CELL),'$(CELL)')

theory: .venv/.stamp  ## the papers' constructions in numbers: results/theory
	@$(PY) scripts/tools.py theory

bench: .venv/.stamp  ## step times beside others' [ARGS="scale=paper", --lab or --profile]
	@$(PY) scripts/bench.py $(ARGS)

gpu-check: $(STAMPS)/tests $(STAMPS)/bench  ## on a GPU: tests, times, tables, publication [SCALE=smoke]
	@$(PY) scripts/reproduce.py --scale $(or $(SCALE),paper) --seeds 1 tracker=none $(ARGS)
	@$(PY) scripts/reproduce.py --scale $(or $(SCALE),paper) tracker=none $(ARGS)
	@$(PY) scripts/tools.py publish --scale $(or $(SCALE),paper) paper-$(GPU_NAME)-bf16

# A part that passed is not repeated until the next commit; runs that are complete never are.
$(STAMPS)/tests: .venv/.stamp $(wildcard .git/logs/HEAD)
	@CROPE_TEST_DEVICE="$${CROPE_TEST_DEVICE:-cuda}" $(PY) -m pytest -q --durations=10 tests/train/test_cuda.py
	@mkdir -p $(STAMPS) && touch $@

# A baseline that fails costs no run.
$(STAMPS)/bench: $(STAMPS)/tests
	-@$(PY) scripts/bench.py scale=$(or $(SCALE),paper)
	@touch $@

golden: .venv/.stamp  ## remake the golden losses; name the models that changed
	@$(PY) scripts/tools.py golden

lint: .venv/.stamp  ## ruff and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 4 --dist worksteal

test: .venv/.stamp lint  ## lint, then the tests: minutes on two cores
	@$(PYTEST)

test-fast: .venv/.stamp  ## the tests without the slow ones: under a minute
	@$(PYTEST) -m 'not slow and not on_demand'

.venv-engines/.stamp: pyproject.toml constraints.txt constraints-engines.txt
	@echo "setting up .venv-engines (once, a few minutes)"
	@$(PYTHON) -m venv .venv-engines
	@.venv-engines/bin/pip $(PIP_INSTALL) constraints-engines.txt -e '.[dev,joblib,slurm,ray]'
	@touch $@

test-engines: .venv-engines/.stamp  ## sweeps by joblib, submitit and Ray, in a venv of its own
	@OMP_NUM_THREADS=1 .venv-engines/bin/python -m pytest -q tests/engines

faults: .venv/.stamp  ## kill runs at random moments and compare bits [KILLS=200]
	@KILLS=$(KILLS) $(PY) -m pytest -q -m on_demand tests/runs/test_faults.py

tutorial: .venv/.stamp  ## type docs/tutorial.md to the letter in a copy (minutes)
	@$(PY) -m pytest -q -m on_demand tests/test_tutorial.py

readme: .venv/.stamp  ## README.md and docs/ from results/published
	@$(PY) scripts/tools.py readme

# Without CUDA packages: pip adds those that the installed build of torch needs.
constraints:  ## pin the newest packages [ARGS="-c constraints.txt": keep]
	@$(PYTHON) -m venv --clear .venv-pins
	@.venv-pins/bin/pip install --disable-pip-version-check $(ARGS) -e '.[dev]'
	@.venv-pins/bin/pip freeze --exclude-editable | grep -Eiv '^(cuda|nvidia|triton)' \
		| sed 's/+[a-z0-9.]*$$//' > .venv-pins/constraints.txt
	@mv .venv-pins/constraints.txt constraints.txt
	@rm -rf .venv-pins

clean:  ## remove environments and caches; never results or data
	rm -rf .venv .venv-engines .venv-pins .mypy_cache .ruff_cache .pytest_cache build *.egg-info

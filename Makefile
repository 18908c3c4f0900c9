# Each target sets up what it needs. An interrupted target continues when it is run again.

PYTHON ?= python3
KILLS ?= 200
PY := .venv/bin/python
# Every target passes all of them on, because a script refuses an option that it does not have.
CHOSEN := $(addprefix --study ,$(STUDY)) $(if $(SCALE),--scale $(SCALE)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)
OPTIONS := $(CHOSEN) $(addprefix --runs ,$(RUNS)) $(addprefix --cell ,$(CELL))

# A misspelt variable must not start other runs than were meant.
VARIABLES := PYTHON KILLS STUDY SEEDS SCALE CELL RUNS ARGS
ON_COMMAND_LINE := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
UNKNOWN := $(filter-out $(VARIABLES) SHELL MAKEFLAGS,$(ON_COMMAND_LINE))
ifneq ($(UNKNOWN),)
$(error unknown variable $(UNKNOWN); use one of $(VARIABLES))
endif

.DEFAULT_GOAL := help
.PHONY: help setup reproduce smoke status report explain theory bench gpu-check upload release golden lint test test-engines faults tutorial readme \
	constraints clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.stamp  ## virtual environment with pinned packages (targets that need it do this themselves)

.venv/.stamp: pyproject.toml constraints.txt
	@echo "setting up .venv (once, a few minutes)"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

reproduce: .venv/.stamp  ## data, every run, report [SCALE=paper|medium|quick|smoke SEEDS=n STUDY="controls schemes" ARGS=runtime.jobs=3]
	@$(PY) scripts/reproduce.py $(OPTIONS)

smoke: .venv/.stamp  ## the same at the smoke scale, in about a minute
	@$(PY) scripts/reproduce.py --scale smoke --seeds 1 $(OPTIONS)

status: .venv/.stamp  ## done, running, failed and missing runs, time left [STUDY="..." SCALE=... SEEDS=n]
	@$(PY) scripts/tools.py status $(OPTIONS)

report: .venv/.stamp  ## results/report/index.html and tables from the records [SCALE=... RUNS=folder]
	@$(PY) scripts/report.py $(OPTIONS)

explain: .venv/.stamp  ## the runs behind a number [CELL=table1/ptb/crope or P1; none: lists them; SCALE=...]
	@$(PY) scripts/tools.py explain $(CELL) $(addprefix --runs ,$(RUNS)) $(CHOSEN)

theory: .venv/.stamp  ## the papers' constructions, limits and decay in numbers: results/theory (minutes) [ARGS="--part recall"]
	@$(PY) scripts/tools.py theory $(OPTIONS)

bench: .venv/.stamp  ## step times next to transformers and a plain loop, into docs/performance.md [ARGS="scale=paper" prints others]
	@$(PY) scripts/bench.py $(OPTIONS) $(if $(ARGS),,--write)

gpu-check: .venv/.stamp  ## on a new GPU machine: tests, step times, both tables, publication [ARGS="tests bench"]
	@.venv/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[transformers]'
	@$(PY) scripts/tools.py gpu-check $(OPTIONS)

upload: .venv/.stamp  ## send finished runs to wandb, after `wandb login` [RUNS="results/runs/*"]
	@$(PY) scripts/tools.py upload $(or $(RUNS),results/runs/*) $(CHOSEN)

release: .venv/.stamp  ## an archive of the tables' models in transformers format, from runs on disk [SCALE=...]
	@.venv/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[transformers]'
	@$(PY) scripts/tools.py release $(OPTIONS)

golden: .venv/.stamp  ## remake the golden losses; runs of models whose losses changed become stale
	@$(PY) scripts/tools.py golden $(OPTIONS)

lint: .venv/.stamp  ## ruff and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

test: lint  ## lint, then the tests
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 4 --dist worksteal

.venv-engines/.stamp: pyproject.toml constraints.txt constraints-engines.txt
	@echo "setting up .venv-engines (once, a few minutes)"
	@$(PYTHON) -m venv .venv-engines
	@.venv-engines/bin/pip install -qq --disable-pip-version-check -c constraints-engines.txt -e '.[dev,joblib,slurm,ray]'
	@touch $@

test-engines: .venv-engines/.stamp  ## sweeps by joblib, submitit and Ray, in an environment of its own
	@OMP_NUM_THREADS=1 .venv-engines/bin/python -m pytest -q tests/engines

faults: .venv/.stamp  ## kill runs at random moments and compare bits [KILLS=200]
	@KILLS=$(KILLS) $(PY) -m pytest -q -m on_demand tests/runs/test_faults.py

tutorial: .venv/.stamp  ## type docs/tutorial.md to the letter in a copy of the repository (minutes)
	@$(PY) -m pytest -q -m on_demand tests/test_tutorial.py

readme: .venv/.stamp  ## rebuild the README's tables and picture from results/published
	@$(PY) scripts/tools.py readme $(OPTIONS)

# Without CUDA packages: pip adds those that the installed build of torch needs.
constraints:  ## pin constraints.txt to the newest packages that fit [ARGS="-c constraints.txt" keeps the pins]
	@$(PYTHON) -m venv --clear .venv-pins
	@.venv-pins/bin/pip install -qq --disable-pip-version-check $(ARGS) -e '.[dev]'
	@.venv-pins/bin/pip freeze --exclude-editable | grep -Eiv '^(cuda|nvidia|triton)' \
		| sed 's/+[a-z0-9.]*$$//' > .venv-pins/constraints.txt
	@mv .venv-pins/constraints.txt constraints.txt
	@rm -rf .venv-pins

clean:  ## remove environments and tool caches; never results or data
	rm -rf .venv .venv-engines .venv-pins .mypy_cache .ruff_cache .pytest_cache build *.egg-info

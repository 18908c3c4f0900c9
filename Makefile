# Everything that a user types. Each target sets up what it needs; typed again, it goes on.

PYTHON ?= python3
SEEDS ?= 1
KILLS ?= 200
PY := .venv/bin/python
# SEEDS has a default for `make reproduce`; a study has seeds of its own unless they are asked for.
CHOICE = $(if $(STUDY),--study $(STUDY)) $(if $(SCALE),--scale $(SCALE)) $(if $(filter-out file,$(origin SEEDS)),--seeds $(SEEDS))

.DEFAULT_GOAL := help
.PHONY: help setup reproduce smoke plan status clean-failed prepare report explain theory readme docs bench profile wandb-sync golden test test-engines faults lint constraints clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.stamp  ## virtual environment with pinned packages (every target does this by itself)

.venv/.stamp: pyproject.toml constraints.txt
	@echo "setting up .venv (once; about a minute)"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

reproduce: .venv/.stamp  ## Tables 1 and 2: data, every run, report [SCALE=paper|quick|smoke SEEDS=n STUDY="schemes controls"]
	@$(PY) scripts/reproduce.py $(addprefix --study ,$(STUDY)) $(if $(SCALE),--scale $(SCALE)) --seeds $(SEEDS) $(ARGS)

smoke: .venv/.stamp  ## the same graph at the smoke scale, in about a minute
	@$(PY) scripts/reproduce.py --scale smoke --seeds $(SEEDS)

plan: .venv/.stamp  ## what a study costs here, before it is started [STUDY=name SCALE=... SEEDS=n; default both tables]
	@$(PY) scripts/plan.py $(CHOICE)

status: .venv/.stamp  ## done, running, failed, missing runs, time left [STUDY=name SCALE=... SEEDS=n ARGS=--watch]
	@$(PY) scripts/status.py $(CHOICE) $(ARGS)

clean-failed: .venv/.stamp  ## remove the folders of failed runs [ARGS=--dry-run]
	@$(PY) scripts/clean_failed.py $(ARGS)

prepare: .venv/.stamp  ## download, check and tokenise the paper's datasets ahead of training [SCALE=...]
	@$(PY) scripts/prepare.py $(if $(SCALE),--scale $(SCALE))

report: .venv/.stamp  ## results/report/index.html and tables from the records [SCALE=...]
	@$(PY) scripts/report.py $(if $(SCALE),--scale $(SCALE))

explain: .venv/.stamp  ## the runs behind a number and how it is worked out [CELL=table1/ptb/crope SCALE=...]
	@$(PY) scripts/explain.py $(CELL) $(if $(SCALE),--scale $(SCALE))

theory: .venv/.stamp  ## the papers' constructions and identities in numbers: results/theory, docs/equations.md (minutes)
	@$(PY) scripts/theory.py $(ARGS)

readme: .venv/.stamp  ## rebuild the README's tables and picture from results/published
	@$(PY) scripts/readme.py

bench: .venv/.stamp  ## step times beside transformers and a plain loop, into docs/performance.md [ARGS=...]
	@.venv/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@$(PY) scripts/bench.py --write $(ARGS)

profile: .venv/.stamp  ## where a step's time goes: results/profile/trace.json and a table [ARGS=scale=paper]
	@$(PY) scripts/profiling.py $(ARGS)

docs: .venv/.stamp  ## rebuild docs/config.md from the schema
	@$(PY) scripts/reference.py

wandb-sync: .venv/.stamp  ## upload runs from wandb's offline files, each once (after `wandb login`)
	@$(PY) scripts/wandb_sync.py

golden: .venv/.stamp  ## remake the golden losses; a change raises NUMERICS_VERSION and makes old runs stale
	@$(PY) scripts/golden.py

lint: .venv/.stamp  ## ruff and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

test: lint  ## lint, then every test
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 4 --dist worksteal

.venv-engines/.stamp: pyproject.toml constraints.txt constraints-engines.txt
	@echo "setting up .venv-engines (once; a few minutes)"
	@$(PYTHON) -m venv .venv-engines
	@.venv-engines/bin/pip install -qq --disable-pip-version-check -c constraints-engines.txt -e '.[dev,joblib,slurm,ray]'
	@touch $@

test-engines: .venv-engines/.stamp  ## sweeps by joblib, submitit, SLURM and Ray, in an environment of its own
	@OMP_NUM_THREADS=1 .venv-engines/bin/python -m pytest -q tests/engines

faults: .venv/.stamp  ## kill runs at random moments and compare bits [KILLS=200]
	@KILLS=$(KILLS) $(PY) -m pytest -q -m on_demand tests/test_faults.py

constraints: .venv/.stamp  ## pin constraints.txt to what .venv holds
	@.venv/bin/pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' > constraints.txt

clean:  ## remove the environment and tool caches; never results or data
	rm -rf .venv .venv-engines .mypy_cache .ruff_cache .pytest_cache build *.egg-info

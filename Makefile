# One command each; the first makes $(VENV). Needs Python 3.11 or newer and a C compiler.
#   make train ARGS="--seed 1"           another seed
#   make train ARGS="cartpole"           another environment
VENV ?= .venv
OLDEST ?= .venv-oldest
ARGS ?=
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
CANDIDATES = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

.PHONY: train test test-fast test-oldest lint check nightly site fingerprints format clean help
.NOTPARALLEL:
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what it imports; most of PyTorch it never does.
export PIP_NO_COMPILE := 1
unexport PYTHONDONTWRITEBYTECODE # tests start a thousand processes: half a second less for each

# Breakout: with an NVIDIA GPU PufferLib 4.0's run, elsewhere one of about a minute on two cores.
DEMO = import mlx.core as mx; print("breakout" if mx.cuda.is_available() else "breakout-cpu")
train: $(VENV)/.run
	@set -- $(if $(filter-out -%,$(firstword $(ARGS))),,$$($(BIN)/python -c '$(DEMO)')) $(ARGS); \
	    echo "$(BIN)/puffer-mlx train $$*"; \
	    $(BIN)/puffer-mlx train "$$@"

# All tests, in JOBS processes, since most of a test's time is waiting; those that ARGS choose in one.
# What they compile is kept in the user's cache: the first run takes longer.
JOBS ?= 3
test: $(VENV)/.test $(VENV)/.compilers $(VENV)/.header
	$(BIN)/python -m pytest $(or $(ARGS),-n $(JOBS) --dist loadfile)

# Those of one process that train and compile nothing of note: under a minute.
test-fast: $(VENV)/.test
	$(BIN)/python -m pytest -m fast $(ARGS)

# The roads of Gymnasium, PettingZoo and PufferLib 3 with the oldest of what they need, in an
# environment of its own ($(OLDEST)) with Python 3.11 or 3.12, which NumPy 1.26 has wheels for.
OLDEST_TESTS = $(addprefix tests/, vec/test_gym.py vec/test_gym_faults.py \
    vec/test_ocean.py vec/test_puffer.py vec/test_spaces.py vec/test_zoo.py system/test_blas.py \
    export/test_pufferlib_policies.py)
test-oldest: export PIP_CONSTRAINT := $(CURDIR)/tests/oldest.txt
test-oldest:
	$(MAKE) VENV=$(OLDEST) $(OLDEST)/.pufferlib
	$(OLDEST)/bin/python -m pytest $(OLDEST_TESTS) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tests/wording.py

check: $(VENV)/.check lint test

# Whether what was learned is still learned: half an hour of a core; and whether benchmarks run. What
# it needs beside the tests' environments (MuJoCo, Box2D) is Gymnasium's to name.
nightly: $(VENV)/.test
	$(BIN)/python -m pip install --quiet 'gymnasium[box2d,mujoco]'
	$(BIN)/python benchmarks/learning.py --nightly --jobs 2 $(ARGS)
	$(BIN)/python -m pytest -m slow tests/project

# The pages of docs/ as a site; warnings are errors.
site: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

# Hashes of the files of plain functions, after one was edited; compares the implementations first.
fingerprints: $(VENV)/.test
	$(BIN)/python tests/fingerprints.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

help:
	@echo "make train       train breakout; ARGS= for options, or another environment first"
	@echo "make test-fast   tests of one process, under a minute"
	@echo "make test        all tests, JOBS=3 processes; ARGS= for pytest"
	@echo "make test-oldest with the oldest Gymnasium and NumPy, and PufferLib 3"
	@echo "make lint        ruff, pyright, and names and docstrings (tests/wording.py)"
	@echo "make check       what CI runs: lint and test"
	@echo "make nightly     learn some of what benchmarks/learning/ says again: half an hour of a core"
	@echo "make site        the pages of docs/ as a site: build/site/index.html"
	@echo "make fingerprints  compare the implementations, and store the hashes of the plain files"
	@echo "make format      ruff's fixes and formatting"
	@echo "make clean       remove the environment and what was built"

# This package, editable; $(VENV)/.test, $(VENV)/.dev: with that extra of pyproject.toml.
$(VENV)/.run: $(BIN)/python pyproject.toml
	@echo "installing puffer_mlx into $(VENV): a minute or two"
	$(BIN)/python -m pip install --editable .
	@! command -v nvidia-smi >/dev/null || echo "for the GPU: $(BIN)/pip install -e '.[cuda]'"
	@touch $@

# PufferLib 3.0's Python: its C would be fetched from GitHub, which needs more than pip.
$(VENV)/.pufferlib: $(VENV)/.oldest
	$(BIN)/python -m pip install --quiet setuptools wheel
	NO_OCEAN=1 NO_TRAIN=1 PYTHONPATH=$(CURDIR)/tests/pufferlib_without_c \
	    $(BIN)/python -m pip install --quiet --no-build-isolation pufferlib==3.0.0
	@touch $@

# All that `make check` needs by one call of pip, which takes long to see what is there.
$(VENV)/.check: pyproject.toml
	$(BIN)/python -m pip install --editable '.[test,compilers,dev]'
	@touch $(addprefix $(VENV)/.,test compilers dev check)

# MLX compiles hundreds of small functions for the tests, each with the same header. GCC finds it
# compiled: 0.3 s each instead of 1.4. Other compilers don't look there.
$(VENV)/.header: $(VENV)/.test
	@cd "$$($(BIN)/python -c 'import mlx.core as mx; print(mx.__file__.rpartition("/")[0])')/include" \
	    && header=mlx/backend/cpu/compiled_preamble.h && test -e $$header \
	    && g++ -std=c++17 -O3 -fPIC -w -I. -x c++-header $$header -o $$header.gch || true
	@touch $@

# torch comes first: what depends on it takes the one that is there.
$(VENV)/.test $(VENV)/.oldest $(VENV)/.check: $(VENV)/.torch
$(VENV)/.torch: $(BIN)/python
	$(BIN)/python -m pip install '$(TORCH)'
	@touch $@

$(VENV)/.%: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --editable '.[$*]'
	@touch $@

# Debian's Python may lack ensurepip; then the pip beside it fills the environment.
$(BIN)/python:
	@echo "making $(VENV): half a minute"
	@for python in $(CANDIDATES); do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    if $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	        $$python -m venv $(VENV) && exit; \
	    elif $$python -c 'import pip, venv' 2>/dev/null; then \
	        $$python -m venv --without-pip $(VENV) \
	            && $$python -m pip --python $@ install --quiet pip && exit; \
	    else \
	        echo "error: $$python lacks venv, or both ensurepip and pip" >&2; \
	        echo "  hint: Debian: apt install python3-venv" >&2; \
	    fi; \
	    rm -rf $(VENV); exit 1; \
	done; \
	echo "error: found no Python 3.11 or newer (tried $(CANDIDATES))" >&2; \
	echo "  hint: make $(or $(MAKECMDGOALS),train) PYTHON=/path/to/python3.12" >&2; \
	exit 1

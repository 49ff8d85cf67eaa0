# make search   search for the fastest variant of the default study
# make test     lint, types, tests
# make test-fast   the tests of the inner loop: a minute and a half at most on two cores, some of every room
# make bench-sampler SPACES=FOLDER ARGS='--repeats 20'   samplers on recorded spaces (tests/bench/README.md)
# By hand: make setup CUDA=12|13|none TORCH=2.13.0 PYTHON=python3.12 SYSTEM=1 (the README says when)

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; exit; }; \
	done; echo python3)
BIN := .venv/bin
# one more than the cores of a small machine: tests wait for processes and clocks in a third of their time
WORKERS ?= 3
# only what is given on make's own command line: an environment may well hold a CUDA of its own
SETTINGS := $(foreach s,CUDA TORCH SYSTEM EXTRAS PIP_ARGS,$(if $(findstring command,$(origin $(s))),'$(s)=$($(s))'))

# Tests start hundreds of processes; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup search test tests test-fast lint bench-sampler clean

setup:
	@$(PYTHON) .ci/setup.py $(SETTINGS)

search: setup
	$(BIN)/evokern search $(ARGS)

# mypy has one process, and tests leave cores idle now and then: side by side.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 lint tests

# Each worker begins with files of its own (what a module makes is made once) and helps the other at the end.
tests:
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

# What takes seconds carries the marker `thorough`; the slowest are listed, so that one that lacks it is seen.
test-fast: setup
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m "not gpu and not slow and not thorough" --timeout 60 --durations 5 \
		--durations-min 3 $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/lint_words.py

bench-sampler: setup
	@test -d "$(SPACES)" || { echo "SPACES=FOLDER with recorded spaces is missing; tests/bench/README.md says where they come from"; exit 2; }
	@$(BIN)/python -c 'import autotuning_methodology, kernel_tuner' 2>/dev/null || $(BIN)/python -m pip install --quiet \
		$(addprefix --constraint ,$(wildcard .venv/constraints.txt)) --editable '.[bench]'
	$(BIN)/python tests/bench/samplers.py "$(SPACES)" $(ARGS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# make search      search for the fastest variant of the default study
# make test        run lint, type checks and tests
# make test-fast   run fast tests of every subpackage; takes at most 90 seconds on two cores
# make bench-sampler SPACES=FOLDER ARGS='--repeats 20'
#                  compare samplers on recorded spaces (tests/bench/README.md)
# make setup CUDA=12|13|none TORCH=2.13.0 PYTHON=python3.12 SYSTEM=1
#                  choose the packages yourself (README.md explains the settings)

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; exit; }; \
	done; echo python3)
BIN := .venv/bin
# One more than the cores of a small machine, because tests wait for processes and clocks a third of the time.
WORKERS ?= 3
# Use only settings from make's command line; the environment may contain an unrelated variable CUDA.
SETTINGS := $(foreach s,CUDA TORCH SYSTEM EXTRAS PIP_ARGS,$(if $(findstring command,$(origin $(s))),'$(s)=$($(s))'))

# Tests start hundreds of processes. Without bytecode files, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup search test tests test-fast lint bench-sampler clean

setup:
	@$(PYTHON) .ci/setup.py $(SETTINGS)

search: setup
	$(BIN)/evokern search $(ARGS)

# Lint and tests run concurrently, because mypy uses one process and tests sometimes leave cores idle.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 lint tests

# Each worker starts with whole files, so that fixtures of a module run once. At the end, idle workers take tests from
# other workers.
tests:
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

# Tests that take seconds have the marker `thorough`. The slowest tests are listed, to show tests without this marker.
test-fast: setup
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m "not gpu and not slow and not thorough" --timeout 60 --durations 5 \
		--durations-min 3 $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/lint_words.py

bench-sampler: setup
	@test -d "$(SPACES)" || { echo "SPACES is not set; use SPACES=FOLDER with recorded spaces (see tests/bench/README.md)"; exit 2; }
	@$(BIN)/python -c 'import autotuning_methodology, kernel_tuner' 2>/dev/null || $(BIN)/python -m pip install --quiet \
		$(addprefix --constraint ,$(wildcard .venv/constraints.txt)) --editable '.[bench]'
	$(BIN)/python tests/bench/samplers.py "$(SPACES)" $(ARGS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# Every target sets up what it needs in .venv by itself. `make` lists the targets.

PYTHON ?= python3
WERROR ?= OFF
VENV := .venv
ASAN_VENV := .venv-sanitize
EMULATED_VENV := .venv-emulate
BIN := $(VENV)/bin

SOURCES := $(shell find csrc -name '*.h' -o -name '*.cpp') CMakeLists.txt pyproject.toml
PACKAGES := $(shell find src -name __init__.py)
GENERATED := csrc/formats.generated.h
NATIVE := $(filter-out $(GENERATED), $(shell find csrc -name '*.h' -o -name '*.cpp'))
BUILD_TOOLS := scikit-build-core nanobind cmake ninja numpy
INSTALL := install -qq --disable-pip-version-check --no-build-isolation

EMIT := PYTHONPATH=src $(BIN)/python -m fewbit.formats.emit

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help test run table bench check check-python check-types check-native check-imports check-emitted \
        sanitize emulate emit format build clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile

test: build ## Build, install into .venv and run all tests
	$(BIN)/python -m pytest -n 2

run: build ## Ask the default model a question; the first time it is fetched (98 MB)
	$(BIN)/fewbit run --temp 0 --max-tokens 160 "Why is the sky blue?"

table: build ## Quantize a matrix in every format; print bits, error and speed
	$(BIN)/fewbit table

bench: build ## Time linear beside NumPy for some formats and batch sizes
	$(BIN)/python benchmarks/linear.py

check: check-python check-types check-native check-imports check-emitted ## Run every check below

check-python: $(VENV)/.dev ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

check-native: $(VENV)/.dev ## clang-format
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

check-imports: $(VENV)/.dev ## import-linter: who may import whom
	PYTHONPATH=src $(BIN)/lint-imports

check-emitted: $(VENV)/.tools ## Are the generated files up to date?
	@$(EMIT) --check && echo "Generated files are up to date."

format: $(VENV)/.dev ## Format Python and C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

emit: $(VENV)/.tools ## Write the files that follow from formats/table.py
	@$(EMIT)

build: $(VENV)/.built-$(WERROR) ## Build and install into .venv (WERROR=ON: warnings are errors)

sanitize: $(ASAN_VENV)/.built ## Run the tests under the address and undefined-behaviour sanitizers
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  $(ASAN_VENV)/bin/python -m pytest -n 2 -m "not slow" --capture=sys

emulate: $(EMULATED_VENV)/.built ## Run the tests of kernels with VNNI and matrix tiles emulated, where AVX-512 is
	$(EMULATED_VENV)/bin/python -m pytest -n 2 -m "not slow" -k "amx or avx512"

clean: ## Remove all that was built, the environments too
	rm -rf build dist $(VENV) $(ASAN_VENV) $(EMULATED_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Stamps: each is touched when its step has succeeded.

$(VENV)/.tools: pyproject.toml
	@echo "Setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip $(INSTALL) $(BUILD_TOOLS)
	@touch $@

# The emitter runs each time. It leaves a file alone that is up to date, and then nothing is built again.
$(GENERATED): emit
	@:

# An editable install: changes in Python are seen at once; changes in C++ are built again, only what is needed.
$(VENV)/.built-$(WERROR): $(SOURCES) $(GENERATED) $(PACKAGES) | $(VENV)/.tools
	@echo "Building fewbit into $(VENV)"
	@$(BIN)/python -m pip $(INSTALL) -C cmake.define.FEWBIT_WERROR=$(WERROR) -e ".[test]"
	@touch $@

# The checks read the sources only, so their tools are installed without building fewbit.
$(VENV)/.dev: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print(*p['dependencies'], *p['optional-dependencies']['dev'], sep='\n')" > $(VENV)/dev.txt
	@$(BIN)/python -m pip $(INSTALL) -r $(VENV)/dev.txt
	@touch $@

$(ASAN_VENV)/.built: $(SOURCES) $(GENERATED) $(PACKAGES)
	@echo "Building fewbit with sanitizers into $(ASAN_VENV)"
	@test -d $(ASAN_VENV) || $(PYTHON) -m venv $(ASAN_VENV)
	@$(ASAN_VENV)/bin/python -m pip $(INSTALL) $(BUILD_TOOLS)
	@$(ASAN_VENV)/bin/python -m pip $(INSTALL) -C build-dir=build/sanitize -C cmake.build-type=None \
	  -C cmake.define.FEWBIT_SANITIZE=ON -e ".[test]"
	@touch $@

$(EMULATED_VENV)/.built: $(SOURCES) $(GENERATED) $(PACKAGES)
	@echo "Building fewbit with emulated VNNI and tiles into $(EMULATED_VENV)"
	@test -d $(EMULATED_VENV) || $(PYTHON) -m venv $(EMULATED_VENV)
	@$(EMULATED_VENV)/bin/python -m pip $(INSTALL) $(BUILD_TOOLS)
	@$(EMULATED_VENV)/bin/python -m pip $(INSTALL) -C build-dir=build/emulate \
	  -C cmake.define.FEWBIT_EMULATE=ON -e ".[test]"
	@touch $@

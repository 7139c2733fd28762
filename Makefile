# The two commands of the README are `make demo` and `make test`; both make their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
# A pinned PyTorch keeps a machine without a GPU from pulling a multi-gigabyte CUDA build of the newest one.
# On a GPU machine any PyTorch >= 2.10 will do: make demo TORCH="torch>=2.10"
TORCH ?= torch==2.13.0
DEMO ?= build/demo
PYTEST_WORKERS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(shell cat pyproject.toml | cksum | cut -d' ' -f1)
PACKAGES := codegen templates tuner generated
CXX_SOURCES := $(shell git ls-files 'templates/include/*.cuh' 'templates/include/*.hpp' 'generated/runtime/*.h' 'generated/runtime/*.hpp' 'generated/runtime/*.cpp' 'codegen/emulator/native/*.h' 'codegen/emulator/native/*.cpp' 2>/dev/null)

.PHONY: help venv demo test test-all lint format clean

help:
	@echo "make demo      tune, freeze, import and compare a kernel on this machine (three to four minutes)"
	@echo "make test      lint, then every test that needs no GPU (about half an hour on two cores)"
	@echo "make test-all  the slow tests too"
	@echo "make lint      ruff, pyright, clang-format: what pre-commit and CI run"
	@echo "make format    let the formatters rewrite the sources"

$(READY):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): $(TORCH), the project and its tools (about a minute; log: $(VENV)/install.log)"
	@{ $(BIN)/python -m pip install --upgrade pip && $(BIN)/python -m pip install "$(TORCH)" && \
	  $(BIN)/python -m pip install --editable ".[dev,cuda]"; } > $(VENV)/install.log 2>&1 || \
	  { tail -n 40 $(VENV)/install.log; exit 1; }
	@rm -f $(VENV)/.ready-*
	@touch $@

venv: $(READY)

demo: $(READY)
	$(BIN)/python benchmarks/demo.py --out $(DEMO)

test: lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(if $(CXX_SOURCES),$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES))

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CXX_SOURCES),$(BIN)/clang-format -i $(CXX_SOURCES))

clean:
	rm -rf $(VENV) build dist *.egg-info generated/_build

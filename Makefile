# One verb per job; CI calls these same verbs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := $(shell git ls-files 'emulator_ext/*.cpp' 'emulator_ext/*.h' 'emulator_ext/*.hpp' '*.cmake' '*CMakeLists.txt' 2>/dev/null)

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: install demo test check format bench soak docs clean

install: $(STAMP)

$(STAMP): pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.24' ninja
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/python -m cluster.demo

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.hpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	git ls-files '*.cpp' '*.hpp' '*.h' | xargs $(BIN)/clang-format -i

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One verb per job; CI calls these same verbs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := $(shell git ls-files 'emulator_ext/*.cpp' 'emulator_ext/*.h' 'emulator_ext/*.hpp' '*.cmake' '*CMakeLists.txt' 2>/dev/null)

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: install demo test cpp-test sanitize soak check format bench gpu-check clean

install: $(STAMP)

$(STAMP): pyproject.toml $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.24' ninja
	CMAKE_GENERATOR=Ninja $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/python -m cluster.demo

test: install cpp-test sanitize
	$(BIN)/python -m pytest

# The C++ core builds and tests without Python.
cpp-test: install
	$(BIN)/cmake -S emulator_ext -B build/cpp -G Ninja -DBITWITNESS_PYTHON=OFF -DBITWITNESS_TESTS=ON >/dev/null
	$(BIN)/cmake --build build/cpp
	$(BIN)/ctest --test-dir build/cpp --output-on-failure

# The same tests under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: install
	$(BIN)/cmake -S emulator_ext -B build/sanitize -G Ninja -DBITWITNESS_PYTHON=OFF -DBITWITNESS_TESTS=ON -DBITWITNESS_SANITIZE=ON >/dev/null
	$(BIN)/cmake --build build/sanitize
	$(BIN)/ctest --test-dir build/sanitize --output-on-failure

# At least 10^8 element results against MMA-Sim; logs its count and seed. Ten minutes.
soak: install
	$(BIN)/python -m tests.emulator_ext.mma_soak

# On a machine with a GPU, with the Python that is there: every kernel against the CPU bit for
# bit, a training run and its roots, then the speeds, whether or not a bit differs.
gpu-check:
	cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$$(command -v $(PYTHON))
	cmake --build build/gpu --parallel
	export PYTHONPATH=build/gpu/emulator_ext:.$${PYTHONPATH:+:$$PYTHONPATH}; status=0; \
	$(PYTHON) -m trainer.kernels.gpu_check || status=$$?; \
	$(PYTHON) -m benchmarks.gpu || status=$$?; \
	exit $$status

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

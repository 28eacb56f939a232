VENV ?= .venv
BIN := $(VENV)/bin
export GYMFLEET_VENV := $(VENV)

.PHONY: setup quickstart test check bench bench-gateway bench-rollout bench-trainer bench-gpu clean

setup:
	@scripts/setup.sh

quickstart: setup
	@$(BIN)/gymfleet train recipes/quickstart.toml

test: setup
	@scripts/test.sh

check: setup
	@scripts/check.sh

bench: bench-gateway bench-rollout bench-trainer

bench-gateway bench-rollout bench-trainer bench-gpu: bench-%: setup
	@$(BIN)/python -m benchmarks.bench_$*

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

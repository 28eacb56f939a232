VENV ?= .venv
BIN := $(VENV)/bin
export GYMFLEET_VENV := $(VENV)

.PHONY: setup quickstart test check bench bench-gateway bench-rollout bench-trainer bench-quickstart bench-gpu bench-envs bench-data clean

setup:
	@scripts/setup.sh

quickstart: setup
	@$(BIN)/gymfleet train recipes/quickstart.toml

test: setup
	@scripts/test.sh

check: setup
	@scripts/check.sh

bench: bench-gateway bench-rollout bench-trainer bench-quickstart

# All figures of the gateway, the OpenEnv comparison and the million-session soak included: about 25 minutes.
bench-gateway: setup
	@scripts/peers.sh
	@set -e; for part in gateway openenv sessions isolation overload chaos soak; do $(BIN)/python -m benchmarks.bench_$$part; done
	@$(BIN)/python -m benchmarks.tables

bench-rollout bench-trainer bench-quickstart bench-gpu bench-envs bench-data: bench-%: setup
	@$(BIN)/python -m benchmarks.bench_$*
	@$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

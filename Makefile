VENV ?= .venv
BIN := $(VENV)/bin
export GYMFLEET_VENV := $(VENV)

.PHONY: setup quickstart test test-long check bench bench-gateway bench-rollout bench-trainer bench-quickstart bench-demonstrations bench-gpu bench-envs bench-data bench-stack bench-costs bench-workers bench-variants bench-methods bench-async bench-publish bench-trees bench-search bench-expert-iteration \
	coverage peers tables images test-compose test-k8s mutation clean

setup:
	@scripts/setup.sh

quickstart: setup
	@$(BIN)/gymfleet train recipes/quickstart.toml

test: setup
	@scripts/test.sh

# More of the same than `make test` has time for.
test-long: setup
	@scripts/test-long.sh

# Which lines of each package unit tests run. Not part of `make test`, whose time it would double.
coverage: setup
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -q -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=65 tests/unit

# Other people's clients and servers, in an environment of their own (500 MB): leaves tests/peers/result.json to be
# committed, without which `make test` refuses a change of what they speak with.
peers: setup
	@scripts/peers.sh
	@$(BIN)/python -m tests.peers.matrix

check: setup
	@scripts/check.sh

# All images for this machine's processor; `scripts/images.sh --help` says how to build others.
images:
	@scripts/images.sh light cpu

# Containers for real. Both say in one line what is missing and end well where there is no Docker Engine.
test-compose: setup
	@scripts/test-compose.sh

test-k8s: setup
	@scripts/test-k8s.sh

# Hours: 400 small changes to what must not be wrong, and whether a test notices each. ARGS="--sample 40 --only losses".
mutation: setup
	@scripts/mutation.sh $(ARGS)

bench: bench-gateway bench-rollout bench-trainer bench-quickstart

# Figures go to runs/benchmarks; ARGS=--publish replaces the published ones, which `make tables` then puts into the docs.
# All figures of the gateway, the OpenEnv comparison and the million-session soak included: about 25 minutes.
bench-gateway: setup
	@scripts/peers.sh
	@set -e; for part in gateway agentgym openenv sessions isolation overload chaos soak; do $(BIN)/python -m benchmarks.bench_$$part $(ARGS); done

bench-rollout bench-trainer bench-quickstart bench-demonstrations bench-gpu bench-envs bench-data bench-stack bench-costs bench-workers bench-variants bench-methods bench-async bench-publish bench-trees bench-search bench-expert-iteration: bench-%: setup
	@$(BIN)/python -m benchmarks.bench_$(subst -,_,$*) $(ARGS)

# What in docs/ is made from elsewhere: figures from benchmarks/results, settings and recipe keys from the models.
tables: setup
	@$(BIN)/python -m benchmarks.tables
	@$(BIN)/python -m scripts.reference_tables

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

"""What README and docs tell people to type, typed: against a fleet of this test's own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import gateway_fleet
from tests.fixtures.paths import ROOT

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


_HERE = "run by this module"
_CLUSTER = "not run: needs a cluster"
_CONTAINERS = "not run as it stands: tests/deploy/compose runs the same stack with a project of its own"
_PEERS = "run by tests/integration/test_openenv_front.py (make peers)"
_IMAGES = "not run as it stands: scripts/test-compose.sh builds these images"
pytestmark = pytest.mark.usefixtures("forked_services")
BLOCKS = {
    ("docs/adding-an-environment.md", "# /// script"): "tests/integration/test_interpreters.py has files of this form",
    (
        "docs/adding-an-environment.md",
        "from gymfleet_envs.adapters.gymnasium",
    ): "tests/unit/envs/test_from_gymnasium.py",
    ("docs/adding-an-environment.md", "from gymfleet_envs.adapters.agentgym"): (
        "tests/integration/test_from_agentgym.py has a file of this form"
    ),
    ("docs/adding-an-environment.md", "import sys\n\nfrom gymfleet_envs.adapters.mcp"): (
        "tests/integration/test_from_mcp.py has this file"
    ),
    ("docs/adding-an-environment.md", "from gymfleet_envs.adapters.openenv"): (
        "tests/integration/test_from_openenv.py has a file of this form"
    ),
    ("docs/search.md", "gymfleet eval"): "run by tests/integration/test_eval_strategies.py, smaller",
    ("docs/search.md", "[[stages]]"): "run by tests/integration/test_search_run.py",
    ("docs/suites.md", "gymfleet eval runs/my-run --suite"): "tests/integration/test_suites.py",
    ("docs/suites.md", "export THEIR_KEY"): "tests/integration/test_eval_model.py, with an endpoint that is there",
    ("docs/suites.md", 'name = "two-shops"'): "tests/unit/contracts/test_suite.py",
    ("docs/data.md", '{"messages": ['): "tests/unit/kit/test_conversation_calls.py has conversations of this form",
    ("docs/data.md", '{"role": "user", "content": "Look: [image'): "tests/unit/trainer/test_image_conversations.py",
    ("docs/distributed-training.md", "[trainer]"): "tests/unit/cli/test_placement.py has recipes of this form",
    ("docs/distributed-training.md", "[placement]"): "tests/unit/cli/test_placement.py has recipes of this form",
    ("README.md", "make quickstart   # install,"): "run by tests/e2e/test_quickstart.py, smaller",
    ("README.md", ".venv/bin/gymfleet up --env maze"): "run by tests/integration/test_cli_fleet.py",
    ("README.md", "curl -s localhost:8200/v1/environments/maze"): _HERE,
    ("README.md", "scripts/images.sh light cpu &&"): _CONTAINERS,
    ("README.md", ".venv/bin/gymfleet new environment"): "run as the guide's, but for training",
    ("CONTRIBUTING.md", "make setup     # .venv"): "run by .ci/run",
    ("docs/adding-an-environment.md", '"""Guess a number;'): "run by tests/unit/project/test_docs.py",
    ("docs/adding-an-environment.md", "gymfleet new environment number_hunt"): _HERE,
    ("docs/adding-an-environment.md", "gymfleet envs play number_hunt"): _HERE,
    ("docs/adding-an-environment.md", "pytest test_number_hunt"): _HERE,
    ("docs/adding-an-environment.md", "gymfleet check number_hunt"): _HERE,
    (
        "docs/adding-an-environment.md",
        "gymfleet train my_recipe.toml",
    ): "not run: trains for minutes",
    ("docs/adding-an-environment.md", "from typing import ClassVar"): "run by tests/unit/project/test_docs.py",
    ("docs/adding-an-environment.md", '"""Put parts'): "run by tests/integration/test_declarations.py",
    ("docs/adding-an-environment.md", '"""The agent'): "run by tests/integration/test_sealed_data.py",
    ("docs/adding-an-environment.md", '"""Name the'): "run by tests/integration/test_images.py",
    ("docs/adding-an-environment.md", '"""Find out what a customer'): "run by tests/integration/test_model_calls.py",
    ("docs/adding-an-environment.md", "export GYMFLEET_ENV_MODELS"): "run by tests/integration/test_model_calls.py",
    ("docs/adding-an-algorithm.md", '"""Skip tasks'): "run by tests/integration/test_algorithm_plugins.py",
    ("docs/adding-an-algorithm.md", '"""Returns above'): "run by tests/integration/test_algorithm_plugins.py",
    ("docs/adding-an-algorithm.md", '"""Direct preference'): "run by tests/integration/test_algorithm_plugins.py",
    ("docs/adding-an-algorithm.md", "[[stages]]"): "run by tests/integration/test_algorithm_plugins.py",
    ("docs/adding-an-algorithm.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/dataset.md", "import json"): "run by tests/integration/test_dataset.py",
    ("docs/dataset.md", "export GYMFLEET_ENV_OPTIONS"): "run by tests/integration/test_dataset.py",
    ("docs/dataset.md", '"""A year'): "run by tests/integration/test_dataset.py",
    ("docs/dataset.md", '{"hub": "openai/gsm8k"'): "options, read by tests/integration/test_dataset.py",
    ("docs/dataset.md", "[[environments]]"): "loaded by tests/integration/test_dataset.py",
    ("docs/dataset.md", '"""Look a word'): "run by tests/integration/test_dataset.py",
    ("docs/chat-templates.md", "[rollout.format]"): "the same keys are in recipes/tool-calls.toml, which tests load",
    ("docs/models.md", "gymfleet plan"): "run for this machine by tests/integration/test_memory_plan.py",
    ("docs/models.md", "[rollout]"): "the same key is in the recipe of tests/integration/test_image_loop.py",
    ("docs/models.md", "scripts/gpu-check.sh"): "not run without a GPU; --smoke is by test_gpu_check.py",
    ("docs/lora.md", "gymfleet train"): "not run: trains for minutes; tests load both recipes",
    ("docs/lora.md", "[model]"): "loaded by tests/unit/contracts/test_recipe.py",
    ("docs/lora.md", "VLLM_SERVER_DEV_MODE=1"): "not run: tests/vllm_server.py starts the same server",
    ("docs/lora.md", "from peft import"): "run, with a model of its own, by tests/integration/test_lora_run.py",
    ("docs/games.md", '"""Nim:'): "run by tests/integration/test_games.py",
    ("docs/games.md", "from gymfleet_client import"): "run by tests/integration/test_games.py",
    ("docs/games.md", "[rollout.strategy]"): "run by tests/integration/test_games.py, without a recipe",
    ("docs/adding-a-strategy.md", '"""Episodes that share'): "run by tests/integration/test_strategy_plugins.py",
    ("docs/adding-a-strategy.md", "[rollout.strategy]"): "run by tests/integration/test_strategy_plugins.py",
    ("docs/adding-a-strategy.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/adding-a-stage.md", '"""Tasks at'): "run by tests/integration/test_stage_plugins.py",
    ("docs/adding-a-stage.md", "[[stages]]"): "run by tests/integration/test_stage_plugins.py, with another path",
    ("docs/adding-a-stage.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/adding-a-converter.md", '"""Logs of'): "run by tests/integration/test_converter_plugins.py",
    (
        "docs/adding-a-converter.md",
        "[[stages]]",
    ): "run by tests/integration/test_converter_plugins.py, with another path",
    ("docs/adding-a-converter.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/data-convert.md", "cat > traj.jsonl"): _HERE,
    ("docs/data-export.md", "cat > ours.jsonl"): _HERE,
    ("docs/data-filter.md", "cat > ours.jsonl"): _HERE,
    ("docs/data-split.md", "for n in 1 2"): _HERE,
    ("docs/data-inspect.md", "cat > ours.jsonl"): _HERE,
    ("docs/adding-a-filter.md", '"""Leave out'): "run by tests/integration/test_filter_plugins.py",
    ("docs/adding-a-filter.md", "[[stages]]"): "run by tests/integration/test_filter_plugins.py, with another path",
    ("docs/adding-a-filter.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/adding-an-augmenter.md", '"""The same actions'): "run by tests/integration/test_augmenter_plugins.py",
    (
        "docs/adding-an-augmenter.md",
        "[[stages]]",
    ): "run by tests/integration/test_augmenter_plugins.py, with another path",
    ("docs/adding-an-augmenter.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/data-augment.md", "gymfleet data augment"): "run by tests/integration/test_data_augment.py",
    ("docs/adding-a-backend.md", '"""Sample replies'): "run by tests/integration/test_backend_plugins.py",
    ("docs/adding-a-backend.md", "[inference]"): "run by tests/integration/test_backend_plugins.py, with another path",
    ("docs/adding-a-backend.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/recipes.md", "[[stages]]"): "loaded by tests/unit/project/test_docs.py",
    ("docs/recipes.md", "[[environments]]"): "loaded by tests/unit/project/test_docs.py",
    ("docs/rewards.md", "[reward.goal]"): "run by tests/unit/reward/test_published_rewards.py",
    ("docs/reward-models.md", "[[stages]]"): "loaded by tests/unit/trainer/test_reward_data.py",
    ("docs/reward-models.md", "gymfleet train first.toml"): "not run: trains for minutes",
    ("docs/reward-models.md", "[model]"): "loaded by tests/unit/trainer/test_reward_data.py",
    ("docs/reward-models.md", '{"helpful"'): "read by tests/integration/test_served_reward_models.py",
    ("docs/reward-models.md", '{"bradley_terry"'): "read by tests/integration/test_served_reward_models.py",
    ("docs/reward-models.md", '{"steps"'): "read by tests/integration/test_served_reward_models.py",
    ("docs/reward-models.md", "[reward.reward_model]"): "like the one of tests/integration/test_reward_models.py",
    ("docs/reward-models.md", "vllm serve"): "not run: the tests start the same server as a module",
    ("docs/reward-models.md", "services:"): "read by tests/deploy/test_k8s_reward_model.py",
    ("docs/reward-models.md", "apiVersion:"): "built by tests/deploy/test_k8s_reward_model.py",
    ("docs/recipes.md", "[rollout.format]"): "loaded by tests/unit/project/test_docs.py",
    ("docs/adding-a-format.md", "from gymfleet_contracts.reply_format import FormatSection"): (
        "run by tests/unit/kit/test_reformatting.py"
    ),
    ("docs/adding-a-format.md", '"""Free text'): "run by tests/integration/test_format_plugins.py",
    (
        "docs/adding-a-format.md",
        "[rollout.format]",
    ): "run by tests/integration/test_format_plugins.py, with another path",
    ("docs/adding-a-format.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/adding-a-format.md", "from gymfleet_rollout"): "run by tests/integration/test_format_plugins.py",
    ("docs/adding-a-component.md", '"""Fewer turns'): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", "[reward.goal]"): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", "[project.entry-points"): "not run: a package of its own",
    ("docs/adding-a-component.md", '"""Actions that'): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", '"""Ask a judge'): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", '"""Ranks instead'): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", '"""The answer at'): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", "[reward.answer]"): "run by tests/integration/test_component_plugins.py",
    ("docs/adding-a-component.md", "[reward.private_answer]"): "run by tests/integration/test_sealed_data.py",
    ("docs/adding-a-component.md", "services:"): "not run: an example of an override",
    ("docs/capacity.md", "python -m benchmarks.capacity"): _HERE,
    (
        "docs/clients.md",
        "const {ticket}",
    ): "not run: needs a browser; see tests/integration/test_access.py",
    ("docs/clients.md", "curl -s -X POST localhost:8200/agentgym"): _HERE,
    ("docs/clients.md", "from openenv import"): _PEERS,
    (
        "docs/clients.md",
        ".venv-peers/bin/openenv validate",
    ): _PEERS,
    ("docs/clients.md", "import asyncio"): _HERE,
    ("docs/clients.md", "from gymfleet_client.gymnasium_env import Gymfleet"): _HERE,
    ("docs/clients.md", "import gymnasium"): _HERE,
    ("docs/collect.md", "gymfleet collect maze"): "run by tests/integration/test_collect.py",
    ("docs/compose.md", "scripts/images.sh light cpu"): _CONTAINERS,
    ("docs/compose.md", "from pathlib import Path"): _HERE,
    ("docs/compose.md", "export COMPOSE_PROFILES=babyai,cpu"): _CONTAINERS,
    ("docs/compose.md", "docker compose -f deploy/docker-compose.yml run"): _CONTAINERS,
    ("docs/compose.md", "services:"): "not run: an example of an override",
    ("docs/compose.md", "docker compose -f deploy/docker-compose.yml up"): _CONTAINERS,
    ("docs/compose.md", "export GYMFLEET_JUDGE_KEY"): "resolved by tests/deploy/test_judges.py",
    ("docs/compose.md", "export COMPOSE_PROFILES=babyai,gpu"): "not run: needs a GPU",
    ("docs/data-annotate.md", "gymfleet data annotate"): "run by tests/integration/test_annotate.py",
    ("docs/dataproto.md", "gymfleet data dataproto"): "run by tests/unit/kit/test_dataproto.py",
    ("docs/dataproto.md", "import json"): "not run: needs verl; was run by hand with verl 0.9.1",
    ("docs/dataproto.md", "from pathlib import Path"): "run by tests/unit/kit/test_dataproto.py",
    (
        "docs/environments.md",
        "gymfleet-env-server maze wordle",
    ): "not run as it stands; see tests/integration/test_env_server.py",
    ("docs/environments.md", "gymfleet envs show ./guess.py"): _HERE,
    ("docs/environments.md", "from gymfleet_env_server.catalogue"): _HERE,
    ("docs/hugging-face.md", "export HF_TOKEN"): "run by tests/integration/test_hub.py, against a stand-in",
    ("docs/images.md", "scripts/images.sh "): _IMAGES,
    ("docs/images.md", "docker build -f"): _IMAGES,
    ("docs/images.md", "scripts/wheelhouse.sh"): _IMAGES,
    ("docs/images.md", "GYMFLEET_WHEELS="): _IMAGES,
    (
        "docs/images.md",
        "docker run --read-only",
    ): _CONTAINERS,
    ("docs/images.md", "docker run --entrypoint python3"): "not run: needs a GPU",
    ("docs/judges.md", "export GYMFLEET_REWARD_JUDGES"): "run by tests/integration/test_reward_judges.py, elsewhere",
    ("docs/judges.md", "[reward."): "run by tests/integration/test_reward_judges.py",
    ("docs/judges.md", "[[stages]]"): "run by tests/integration/test_generative_judge.py, smaller",
    ("docs/judges.md", "gymfleet train first.toml"): "not run: trains for minutes, and the tests serve by transformers",
    ("docs/judges.md", "[model]"): "loaded by tests/integration/test_generative_judge.py",
    ("docs/judges.md", '{"turns"'): "run by tests/integration/test_reward_judges.py",
    ("docs/kubernetes.md", "scripts/images.sh light cpu"): _CLUSTER,
    ("docs/kubernetes.md", "kubectl -n gymfleet port-forward"): _CLUSTER,
    ("docs/plugins.md", "gymfleet plugins list"): _HERE,
    ("docs/preferences.md", "[[stages]]"): "loaded by tests/unit/project/test_docs.py",
    ("docs/methods.md", "make bench-methods"): "its smallest form is run by test_benchmarks.py",
    ("docs/train.md", "gymfleet train --env maze"): "not run: trains; see unit/cli/test_composing.py",
    ("docs/train.md", "gymfleet train recipes/methods"): "the loops are run smaller by test_loops.py",
    ("docs/operations.md", "redis-cli CONFIG SET"): "not run: a procedure for an operator's Redis",
    ("docs/operations.md", "redis-cli ACL SETUSER"): "not run: a procedure for an operator's Redis",
    (
        "docs/operations.md",
        "[tenants.lab]",
    ): "not run: an example; see tests/unit/env_gateway/test_access.py",
    (
        "docs/operations.md",
        "export OTEL_EXPORTER",
    ): "not run as it stands; see tests/integration/test_tracing.py",
    ("docs/operations.md", "grep -h -e"): "not run: a search in an operator's logs",
}
"""By page and beginning: what runs a block, or why nothing does."""


def block(page: str, language: str, having: str) -> str:
    """The fenced block of a page that holds a text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = [body for kind, body in _FENCE.findall(text) if kind == language and having in body]
    return str(found)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a gateway."""
    directory = tmp_path_factory.mktemp("fleet")
    server = gateway_fleet.env_server(directory, "maze", "wordle", "textcraft", "babyai")
    gateway = gateway_fleet.gateway(directory, [server.url], agentgym="true")
    with gateway_fleet.running(server, gateway):
        yield gateway.url.removeprefix("http://")


def here(text: str, address: str) -> str:
    return text.replace("127.0.0.1:8200", address).replace("localhost:8200", address)


def typed(script: str, directory: Path = ROOT) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def executed(source: str, directory: Path) -> str:
    path = directory / "block.py"
    path.write_text(source, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_session_of_the_readme_is_played_with_curl(address: str) -> None:
    script = here(block("README.md", "sh", "SESSION_ID"), address)
    listed, opened, stepped, closed = (f"curl {call}" for call in re.split(r"^curl ", script, flags=re.MULTILINE)[1:])

    assert json.loads(typed(listed))["name"] == "maze"
    session_id = json.loads(typed(opened))["session_id"]
    assert json.loads(typed(stepped.replace("SESSION_ID", session_id)))["action_valid"]
    assert typed(closed.replace("SESSION_ID", session_id)) == ""


def test_an_agentgym_episode_of_the_guide_is_played_with_curl(address: str) -> None:
    created, *calls = [
        line for line in here(block("docs/clients.md", "sh", "/agentgym/babyai/create"), address).splitlines()
        if line.startswith("curl")
    ]  # fmt: skip

    number = json.loads(typed(created))["id"]
    answers = [json.loads(typed(re.sub(r'"id": \d+', f'"id": {number}', call))) for call in calls]

    assert all("observation" in answer for answer in answers), answers


def test_mcp_and_gymnasium_of_the_guide_play(address: str, tmp_path: Path) -> None:
    tools = executed(here(block("docs/clients.md", "python", "from mcp import Client"), address), tmp_path)
    assert "'action_valid': True" in tools
    single = executed(here(block("docs/clients.md", "python", "env = GymfleetEnv("), address), tmp_path)
    assert single.split()[-1] == "True", "the action is one"
    executed(here(block("docs/clients.md", "python", "make_vec"), address), tmp_path)


def test_the_sdk_of_the_compose_guide_plays(address: str, tmp_path: Path) -> None:
    source = here(block("docs/compose.md", "python", "SyncGatewayClient"), address)
    key = 'Path("deploy/compose/secrets/gateway_api_key").read_text().strip()'
    assert key in source

    assert "Inventory" in executed(source.replace(key, '"this gateway asks for none"'), tmp_path)


def test_capacity_is_planned() -> None:
    assert "replicas" in typed(block("docs/capacity.md", "sh", "benchmarks.capacity"))


def test_an_environment_in_a_file_is_shown_and_played(tmp_path: Path) -> None:
    guess = block("docs/adding-an-environment.md", "python", 'Environment[int]):\n    """The task is the number.')
    (tmp_path / "guess.py").write_text(guess, encoding="utf-8")
    shown, _, played = block("docs/environments.md", "sh", "gymfleet envs show").splitlines()

    assert "Guess a number from 1 to 1000" in typed(shown, tmp_path)
    assert "Lower." in typed(played, tmp_path) or "Higher." in typed(played, tmp_path)


def test_cheats_are_played_in_an_environment_in_a_file(tmp_path: Path) -> None:
    guess = block("docs/adding-an-environment.md", "python", 'Environment[int]):\n    """The task is the number.')
    (tmp_path / "guess.py").write_text(guess, encoding="utf-8")
    tested = block("docs/environments.md", "python", "def test_no_cheat_is_paid").replace("./", f"{tmp_path}/")

    assert executed(f"{tested}\n\ntest_no_cheat_is_paid()\nprint('not paid')\n", tmp_path) == "not paid\n"


def test_the_guide_to_an_environment_is_followed(tmp_path: Path) -> None:
    page = "docs/adding-an-environment.md"
    typed(block(page, "sh", "gymfleet new environment"), tmp_path)

    played = typed(f"printf 'hint\\nquit\\n' | {block(page, 'sh', 'gymfleet envs play')}", tmp_path)
    tested = typed(block(page, "sh", "pytest test_number_hunt"), tmp_path)
    checked = typed(block(page, "sh", "gymfleet check"), tmp_path)

    assert "number" in played
    assert " passed" in tested
    (told,) = [line for line in checked.splitlines() if line.startswith("native number_hunt")]
    assert told.strip() in (ROOT / page).read_text("utf-8"), "what the page says that it prints"


@pytest.mark.long
def test_a_plug_in_is_made_and_checked(tmp_path: Path) -> None:
    typed(block("docs/plugins.md", "sh", "gymfleet plugins list"), tmp_path)

    assert {path.name for path in tmp_path.glob("*.py")} == {"margin.py", "test_margin.py"}


@pytest.mark.parametrize(
    ("command", "told", "left"),
    [
        ("convert", "2 read, 1 written, 1 rejected", ["ours.parquet", "ours.parquet.rejected.jsonl", "traj.jsonl"]),
        ("export", "lost labels: 1", ["chats.jsonl", "ours.jsonl", "traj.parquet"]),
        ("filter", "left_out 0 duplicates: 1\n  left_out 1 length: 1\n{", ["kept.jsonl", "ours.jsonl"]),
        ("split", "8 read, 8 written, 0 rejected", ["mix.test.jsonl", "mix.train.jsonl", "ours.jsonl"]),
        ("inspect", "rows  1", ["ours.jsonl"]),
    ],
)
def test_a_command_over_files_of_data_does_what_its_page_says(
    tmp_path: Path, command: str, told: str, left: list[str]
) -> None:
    printed = typed(block(f"docs/data-{command}.md", "sh", f"gymfleet data {command}"), tmp_path)

    assert told in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_every_block_is_run_or_says_why_not() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        (str(page.relative_to(ROOT)), body) for page in pages for _, body in _FENCE.findall(page.read_text("utf-8"))
    ]

    unsaid = [
        (page, body.splitlines()[0]) for page, body in found
        if not any(page == where and body.startswith(start) for where, start in BLOCKS)
    ]  # fmt: skip
    gone = [key for key in BLOCKS if not any(page == key[0] and body.startswith(key[1]) for page, body in found)]
    assert (unsaid, gone) == ([], [])
    tests = re.findall(r"tests/[\w./]+\w", " ".join(BLOCKS.values()))
    assert [path for path in tests if not (ROOT / path).exists()] == []


def test_every_command_of_ours_in_the_docs_exists() -> None:
    """Targets of make, scripts, kustomizations and modules that the pages name."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    shell = "\n".join(body for page in pages for kind, body in _FENCE.findall(page.read_text("utf-8")) if kind == "sh")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", makefile, re.MULTILINE))
    known = {name for group in targets for name in group.split()}

    assert set(re.findall(r"^make ([\w-]+)", shell, re.MULTILINE)) <= known
    named = re.findall(r"(?<![\w/])((?:scripts|deploy)/[\w./-]+)", shell)
    made = {"deploy/compose/secrets"}  # by the script above it
    assert [path for path in set(named) - made if not (ROOT / path).exists()] == []
    modules = re.findall(r"python -m (benchmarks[\w.]+)", shell)
    assert [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []
    assert len(named) > 15

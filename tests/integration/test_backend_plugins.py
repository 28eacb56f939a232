"""The backend of the guide in a whole run; and backends that cannot be used, fail, or talk nonsense."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gymfleet_contracts.recipe_sections import InferenceSection
from gymfleet_contracts.trajectory import Status
from gymfleet_rollout.backend_checks import examine

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet, ServiceProcess
from tests.integration.test_rollout_service import group, played
from tests.integration.test_rollout_start import refusal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/adding-a-backend.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RECIPE = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[inference]" in block)

SCRIPTED = """
import asyncio

from gymfleet_rollout.backend import BackendOptions, Continuation, Engine, InferenceBackend


class Scripted(Engine):
    max_model_len = 1024
    calls = 0

    async def start(self):
        {start}

    async def generate(self, request, on_tokens=None):
        self.calls += 1
        tokens, logprobs = [65] * request.max_tokens, [-1.0] * request.max_tokens
        if self.calls > {sound_for}:
            {nonsense}
        await asyncio.sleep(0)
        return Continuation(tokens, logprobs, "length")

    async def interrupt(self): ...

    async def load(self, weights_path): ...

    async def check(self): ...

    async def close(self): ...


class Options(BackendOptions):
    width: int = 1


class Mine(InferenceBackend[Options]):
    Options = Options

    def engine(self, replica, config):
        return Scripted()
"""


def scripted(directory: Path, *, start: str = "pass", nonsense: str = "pass", sound_for: int = 0) -> Path:
    path = directory / "mine.py"
    path.write_text(SCRIPTED.format(start=start, nonsense=nonsense, sound_for=sound_for))
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def fleet(maze_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, whose own rollout service rests meanwhile."""
    maze_fleet.rollout.stop()
    yield maze_fleet
    maze_fleet.rollout.start()
    maze_fleet.rollout.wait_ready()


@pytest.mark.filterwarnings("ignore")
def test_the_guides_backend_is_short_and_sound(plain: Path) -> None:
    assert len(SOURCE.splitlines()) < 60
    section = InferenceSection.model_validate(tomllib.loads(RECIPE)["inference"])
    assert (section.backend, section.options, section.max_model_len) == ("./plain.py", {}, 1024)
    assert examine(str(plain)) == []


def test_a_run_learns_from_it(fleet: Fleet, tiny_model: Path, tmp_path: Path, plain: Path) -> None:
    """Two steps, each published to it, and proven to be what it computes with."""
    service = fleet.new_rollout(BACKEND=str(plain), MAX_MODEL_LEN="1024")
    service.start()
    try:
        service.wait_ready()
        run = TrainerRun(fleet, tmp_path / "run", tiny_model, steps=2, sft="", settings={"ROLLOUT_URL": service.url})
        recipe = run.recipe.read_text().replace(
            "[inference]", RECIPE.replace("./plain.py", str(plain)).split("max_")[0]
        )
        run.recipe.write_text(recipe)
        summary = run.finish()
        policy = httpx.get(f"{service.url}/v1/policy", trust_env=False).json()
    finally:
        service.stop()

    assert [step["episodes"] for step in run.metrics("rl_step")] == [6, 6]
    assert policy["backend"] == str(plain)
    versions = [line["version"] for line in run.metrics("publish")]
    assert len(versions) == 3, "the weights that it began with, and those of two steps"
    assert policy["live_version"] == versions[-1]
    assert summary["inference"]["backend"] == str(plain)
    assert [line["parity_mean_abs"] < 1e-4 for line in run.metrics("publish")] == [True] * 3
    assert str(plain) in json.loads((run.run_dir / "plugins.json").read_text())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"BACKEND": "sever"}, "ROLLOUT_BACKEND: there is no backend 'sever'; known: embedded, server; or give"),
        ({"BACKEND_OPTIONS": '{"widht": 2}'}, "_OPTIONS.widht: Extra inputs are not permitted (the options of M: w"),
        ({"BACKEND_OPTIONS": '{"width": "x"}'}, "ROLLOUT_BACKEND_OPTIONS.width: Input should be a valid integer"),
        ({"BACKEND_OPTIONS": "width"}, "backend_options"),
        ({"BACKEND": "server"}, "give urls, or discover, as a list of the vLLM servers that there are: GYM"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_used_ends_the_process_with_a_line(
    tiny_model: Path, tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    path = scripted(tmp_path)

    done = refusal(**{"MODEL": str(tiny_model), "BACKEND": str(path), **settings})

    assert done.returncode == 2
    assert told.replace("of M:", f"of {path}:") in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_that_raises_when_imported_is_a_line(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise RuntimeError('no\\nway')")

    done = refusal(MODEL=str(tiny_model), BACKEND=str(path))

    line = f"error: GYMFLEET_ROLLOUT_BACKEND: {path} cannot be imported: RuntimeError: no way\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({"start": "raise RuntimeError('no GPU')"}, "the engine embedded failed: RuntimeError: no GPU"),
        ({"nonsense": "tokens = [384]"}, "the engine embedded gave the token 384, and the vocabulary ends at 3"),
        ({"nonsense": "logprobs = [float('nan')]"}, "the engine embedded gave the log-probability nan, and one is"),
        ({"nonsense": "return None"}, "the engine embedded failed: AttributeError: "),
    ],
)  # fmt: skip
def test_one_that_fails_at_the_start_ends_the_process(
    fleet: Fleet, tmp_path: Path, faults: dict[str, str], told: str
) -> None:
    service = fleet.new_rollout(BACKEND=str(scripted(tmp_path, **faults)))  # type: ignore[arg-type]
    service.start()

    assert service.process is not None
    assert service.process.wait(timeout=60) == 1
    assert told in service.tail()


def nonsense(service: ServiceProcess) -> list[tuple[Status, str]]:
    service.start()
    try:
        service.wait_ready()
        with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:
            return [(one.status, str(one.error)) for one in played(client, group("nonsense"))]
    finally:
        service.stop()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("logprobs[-1] = float('nan')", "gave the log-probability nan, and one is finite and at most 0"),
        ("tokens[0] = 10**6", "gave the token 1000000, and the vocabulary ends at"),
        ("logprobs.pop()", "log-probabilities"),
        ("raise KeyError('lost')", "the engine embedded failed: KeyError: 'lost'"),
    ],
)
def test_nonsense_fails_the_episode_and_scores_nothing(fleet: Fleet, tmp_path: Path, fault: str, told: str) -> None:
    """Only long replies are, so that the service becomes ready and stays so."""
    path = scripted(tmp_path, nonsense=f"if request.max_tokens > 1: {fault}")

    failed = nonsense(fleet.new_rollout(BACKEND=str(path)))

    assert failed
    assert {status.trainable for status, _ in failed} == {False}
    assert all(told in error for _, error in failed), failed

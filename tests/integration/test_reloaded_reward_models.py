"""A reward model whose directory is written and replaced while the service runs: missing, new, broken, in mid-read."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_reward.composer import Scorer
from gymfleet_reward.models import entries, replica
from gymfleet_reward.models.entries import ReloadedEntry
from gymfleet_reward.models.reward_models import RewardModels
from gymfleet_reward.models.tables import EmbeddedTable
from gymfleet_reward.settings import RewardSettings

from tests.fixtures.rewards import make_spec
from tests.fixtures.trajectories import make_trajectory
from tests.models import build_reward_model

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two")):
        build_reward_model(root / name, seed=seed)
    build_reward_model(root / "labels", num_labels=2)
    build_reward_model(root / "turns", turns=True)
    return root


class Service:
    """A scorer with one reward model, which lies at `path`."""

    def __init__(self, path: Path, **table: Any) -> None:
        given = {"kind": "embedded", "path": str(path), "max_tokens": 512, "reload": True, **table}
        self.models = RewardModels(RewardSettings.model_validate({"models": {"rm": given}}).models)
        self.models.start()
        self._scorer = Scorer(models=self.models)

    def score(self, component: str = "reward_model") -> ScoredTrajectory:
        spec = make_spec(goal={"enabled": False}, **{component: {"model": "rm"}})
        (found,) = self._scorer.score([ScoreRequest(trajectory=make_trajectory((2, 2)), reward=spec)])
        return found

    def number(self) -> tuple[float, str]:
        """What it says of an episode, and which weights the record names."""
        scored = self.score()
        assert scored.reward is not None, scored.reward_error
        return scored.reward.total, scored.reward.scorers["reward_model"]

    def close(self) -> None:
        self._scorer.close()
        self.models.close()


@pytest.fixture
def latest(tmp_path: Path) -> Path:
    return tmp_path / "rm"


@pytest.fixture
def service(latest: Path) -> Iterator[Service]:
    service = Service(latest)
    yield service
    service.close()


def point(link: Path, target: Path) -> None:
    """Make a link lead somewhere else at once, as the trainer does."""
    other = link.with_name("next")
    other.symlink_to(target)
    other.replace(link)


def expected(path: Path) -> float:
    service = Service(path, reload=False)
    number, _ = service.number()
    service.close()
    return number


def test_a_model_that_is_not_there_yet_fails_episodes_and_not_the_service(
    service: Service, latest: Path, made: Path
) -> None:
    assert not service.models.loading()
    assert service.models.lack() is None

    missing = service.score()
    point(latest, made / "one")
    number, _ = service.number()

    assert missing.reward is None
    assert f"the reward model 'rm' is not there: {latest}: No such file or directory" in str(missing.reward_error)
    assert "\n" not in str(missing.reward_error)
    assert number == pytest.approx(expected(made / "one"), abs=1e-5)


def test_the_next_batch_is_scored_by_the_weights_that_are_there_then_and_its_record_says_so(
    service: Service, latest: Path, made: Path
) -> None:
    said: dict[str, tuple[float, str]] = {}
    for name in ("one", "two", "one"):
        point(latest, made / name)
        number, record = service.number()
        assert number == pytest.approx(expected(made / name), abs=1e-5)
        assert record.startswith(f"1 model=rm:{name}@")
        said.setdefault(name, (number, record))
        assert said[name] == (number, record) == service.number()

    assert said["one"][0] != pytest.approx(said["two"][0], abs=1e-3)


def test_other_weights_under_the_same_name_have_another_record(service: Service, latest: Path, made: Path) -> None:
    shutil.copytree(made / "one", latest)
    first, one = service.number()
    shutil.copytree(made / "two", latest.with_name("next"))
    latest.rename(latest.with_name("old"))
    latest.with_name("next").rename(latest)

    second, other = service.number()

    assert first == pytest.approx(expected(made / "one"), abs=1e-5)
    assert second == pytest.approx(expected(made / "two"), abs=1e-5)
    assert one != other
    assert one.partition("@")[0] == other.partition("@")[0] == "1 model=rm:rm"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("labels", "has 2 labels: a reward model has a head with one"),
        ("turns", "needs one for SequenceClassification"),
        ("empty", "tokenizer.json is missing"),
        ("cut", "cannot be loaded on cpu: "),
    ],
)
def test_a_new_one_that_cannot_be_used_is_an_error_until_it_is_mended(
    service: Service, latest: Path, made: Path, tmp_path: Path, broken: str, reason: str
) -> None:
    place = made / broken
    if broken == "empty":
        (place := tmp_path / "empty").mkdir()
    if broken == "cut":
        shutil.copytree(made / "two", place := tmp_path / "cut")
        (place / "model.safetensors").write_bytes((made / "two" / "model.safetensors").read_bytes()[:1000])
    point(latest, made / "one")
    service.number()
    point(latest, place)

    found = [service.score(), service.score()]
    point(latest, made / "two")
    number, _ = service.number()

    for one in found:
        assert one.reward is None, "and not the number of the weights that were there"
        assert "the reward model 'rm': " in str(one.reward_error)
        assert reason in str(one.reward_error)
    assert number == pytest.approx(expected(made / "two"), abs=1e-5)
    assert service.models.lack() is None


def test_a_load_that_fails_in_a_way_that_nobody_thought_of_is_an_error_too(
    service: Service, latest: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(replica, "Replica", broken)
    point(latest, made / "one")

    failed = service.score()
    monkeypatch.undo()
    point(latest, made / "two")
    number, _ = service.number()

    assert "the reward model 'rm' cannot be loaded: ZeroDivisionError: by design" in str(failed.reward_error)
    assert number == pytest.approx(expected(made / "two"), abs=1e-5)


def test_one_that_is_taken_away_is_an_error(service: Service, latest: Path, made: Path) -> None:
    point(latest, made / "one")
    service.number()
    latest.unlink()

    gone = service.score()

    assert gone.reward is None
    assert "the reward model 'rm' is not there: " in str(gone.reward_error)


def test_what_is_replaced_while_it_is_loaded_is_not_used(
    service: Service, latest: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(latest, made / "one")
    digest = entries._digest
    loaded: list[str] = []

    def replaced_meanwhile(directory: Path) -> str:
        if not loaded:
            point(latest, made / "two")
        loaded.append(directory.name)
        return digest(directory)

    monkeypatch.setattr(entries, "_digest", replaced_meanwhile)

    number, record = service.number()

    assert loaded == ["one", "two"]
    assert number == pytest.approx(expected(made / "two"), abs=1e-5)
    assert record.startswith("1 model=rm:two@")


def test_one_that_is_in_use_is_not_taken_away_and_the_next_one_waits(latest: Path, made: Path) -> None:
    table = EmbeddedTable(kind="embedded", path=latest, max_tokens=512, reload=True)
    entry = ReloadedEntry("rm", table)
    point(latest, made / "one")
    seen: list[str] = []

    def ask() -> None:
        with entry.held() as held:
            seen.append(held.recorded)

    with entry.held() as first:
        point(latest, made / "two")
        other = threading.Thread(target=ask)
        other.start()
        other.join(0.5)
        assert other.is_alive()
        (answer,) = first.model.values([first.transcripts.whole(make_trajectory((2, 2)))])
    other.join(60)
    entry.close()

    assert not isinstance(answer, BaseException)
    assert answer[0] == pytest.approx(expected(made / "one"), abs=1e-5)
    assert [name.partition("@")[0] for name in seen] == ["rm:two"]


def test_a_process_reward_model_is_replaced_likewise(latest: Path, made: Path) -> None:
    service = Service(latest, scores="turns")
    point(latest, made / "turns")

    scored = service.score("process_reward_model")
    service.close()

    assert scored.reward is not None, scored.reward_error
    assert scored.reward.scorers["process_reward_model"].startswith("1 model=rm:turns@")

"""Games in a shard's sessions: what each player sees, and what a game must not say."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from gymfleet_contracts.session import ForkSupport
from gymfleet_env_server.catalogue import Entry, EnvironmentUnavailable, find_environment
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.sessions import Sessions
from gymfleet_env_server.wire import decode
from gymfleet_envs.environment import AnyEnvironment, Game, Outcome, Seat
from gymfleet_kit.session_problems import EnvironmentFailed, EpisodeOver, ForkUnsupported

from tests.fixtures.game_environments import Cards, Nonsense

SEATS = {"left": Seat("l"), "right": Seat("r")}


def served(*kinds: type[AnyEnvironment]) -> Sessions:
    entries = {}
    for kind in kinds:
        tasks: Any = kind.task_source(None)
        entries[kind.name] = Entry(kind=kind, tasks=tasks, spec=kind.spec(tasks))
    return Sessions("x-0-0", entries, Limits(100, lambda *_: None), lease_s=60.0, expert_splits=("train",))


class Play:
    """One game."""

    def __init__(self, kind: type[AnyEnvironment] = Cards, **fields: Any) -> None:
        self.sessions = served(kind)
        self.opened = self.sessions.handle("open", "", {"env": kind.name, "task_index": 0, **fields})
        self.id: str = self.opened["session_id"]
        self.steps = 0

    def say(self, action: str) -> dict[str, Any]:
        result: dict[str, Any] = decode(self.sessions.step(self.id, self.steps, action))
        self.steps += 1
        return result


def test_a_game_says_what_each_player_sees_and_who_is_to_move() -> None:
    play = Play()
    left, right = play.opened["info"]["cards"]

    assert play.opened["observation"] == f"You have {left}."
    assert play.opened["game"] == {
        "to_move": "left",
        "moved": None,
        "seats": {
            "left": {"observation": f"You have {left}.", "reward": 0.0, "score": 0.0},
            "right": {"observation": f"You have {right}.", "reward": 0.0, "score": 0.0},
        },
    }
    first = play.say("say yes")
    assert (first["observation"], first["reward"]) == (f"You have {right}.", 0.0)
    assert (first["game"]["to_move"], first["game"]["moved"]) == ("right", "left")
    assert play.sessions.handle("get", play.id, None)["game"] == first["game"]


def test_the_reward_of_a_step_is_the_movers_and_others_have_theirs_in_the_game() -> None:
    play = Play()
    left, right = play.opened["info"]["cards"]
    play.say("say yes")
    last = play.say("say yes")

    won = float(right > left)
    assert (last["terminated"], last["reward"], last["score"]) == (True, won, won)
    assert last["observation"] == f"You had {right}, the other {left}."
    assert (last["game"]["to_move"], last["game"]["moved"]) == (None, "right")
    rewards = {name: seat["reward"] for name, seat in last["game"]["seats"].items()}
    assert rewards == {"left": 1 - won, "right": won}
    with pytest.raises(EpisodeOver):
        play.say("say yes")


class Paid(Cards):
    """`left` plays alone, and gains 0.5 with each step."""

    name: ClassVar[str] = "paid"
    steps = 0

    def step(self, action: str) -> Outcome:
        self.steps += 1
        return Outcome("")

    def game(self) -> Game:
        return Game("left", {**SEATS, "left": Seat("l", reward=0.5 * self.steps)})


def test_what_was_gained_before_is_not_counted_again() -> None:
    play = Play(Paid)
    results = [play.say("on") for _ in range(3)]

    assert [r["reward"] for r in results] == [0.5, 0.5, 0.5]
    assert [r["game"]["seats"]["left"]["reward"] for r in results] == [0.5, 1.0, 1.5]


def test_who_breaks_the_rules_is_asked_again_until_the_turns_are_used_up() -> None:
    play = Play()
    results = [play.say("hm") for _ in range(6)]

    assert [r["action_valid"] for r in results] == [False] * 6
    assert [r["game"]["to_move"] for r in results] == ["left"] * 5 + [None]
    assert (results[-1]["truncated"], results[-1]["terminated"]) == (True, False)


@pytest.mark.parametrize("fork", [ForkSupport.NATIVE, ForkSupport.REPLAY])
def test_a_game_forks_with_what_its_players_see(fork: ForkSupport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cards, "fork", fork)
    play = Play()
    first = play.say("say yes")
    (child,) = play.sessions.handle("fork", play.id, {"count": 1})

    assert child["game"] == first["game"]
    own = play.say("say no")
    assert decode(play.sessions.step(child["session_id"], 1, "say no"))["game"] == own["game"]
    over = play.sessions.handle("fork", play.id, {"count": 1})[0]
    assert (over["game"], over["terminated"]) == (own["game"], True)


class Fickle(Cards):
    """Shows the player who is not to move something else each time."""

    name: ClassVar[str] = "fickle"
    shown: ClassVar[Iterator[int]] = itertools.count()

    def game(self) -> Game:
        game = super().game()
        return Game(game.to_move, {**game.seats, "left": Seat(f"{next(self.shown)}")})


def test_a_replay_that_shows_another_player_something_else_is_noticed() -> None:
    play = Play(Fickle)
    play.say("say yes")

    with pytest.raises(ForkUnsupported, match="showed something else"):
        play.sessions.handle("fork", play.id, {"count": 1})


@pytest.mark.parametrize(
    ("told", "gives"),
    [
        (None, Outcome("")),
        (Game("left", {"left": Seat("l")}), Outcome("")),
        (Game("left", {**SEATS, "third": Seat("")}), Outcome("")),
        (Game("nobody", SEATS), Outcome("")),
        (Game(None, SEATS), Outcome("")),
        (Game("left", SEATS), Outcome("", terminated=True)),
        (Game("left", {**SEATS, "left": Seat("l", reward=float("nan"))}), Outcome("")),
        (Game("left", {**SEATS, "left": Seat("l", score=2.0)}), Outcome("")),
        (Game("left", {**SEATS, "left": Seat(7)}), Outcome("")),  # type: ignore[arg-type]
        (Game("left", SEATS), Outcome("seen by all")),
        (Game("left", SEATS), Outcome("", reward=1.0)),
        (Game("left", SEATS), Outcome("", score=1.0)),
    ],
    ids=[
        "none", "too-few", "too-many", "unknown", "over-and-not", "not-over", "nan", "score", "no-text", "observation",
        "reward", "outcome-score",
    ],
)  # fmt: skip
def test_nonsense_ends_the_session(told: Any, gives: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nonsense, "told", told)
    monkeypatch.setattr(Nonsense, "gives", gives)
    play = Play(Nonsense)

    with pytest.raises(EnvironmentFailed):
        play.say("say yes")


@pytest.mark.parametrize(
    ("name", "answer"),
    [("reset", lambda *_: "A game."), ("game", lambda _: Game(None, SEATS))],
    ids=["text", "over"],
)
def test_a_game_that_begins_wrongly_is_not_opened(
    name: str, answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "reset":
        begin = Cards.reset
        monkeypatch.setattr(Cards, name, lambda *given: begin(*given) or answer())
    else:
        monkeypatch.setattr(Cards, name, answer)

    with pytest.raises(EnvironmentFailed):
        Play()


def test_a_long_observation_of_a_player_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nonsense, "told", Game("left", {**SEATS, "right": Seat("x" * 200)}))
    shown = Play(Nonsense).say("say yes")["game"]["seats"]["right"]["observation"]

    assert shown.startswith("x" * 100)
    assert "100 more characters" in shown


@pytest.mark.parametrize(
    "body",
    ["seats = ('a', 'a')\n    def game(self): ...", "seats = ('a',)", "def game(self): ..."],
    ids=["twice", "no-game", "no-seats"],
)
def test_seats_and_game_go_together(body: str, tmp_path: Any) -> None:
    source = (
        "from gymfleet_envs.environment import Environment\n"
        "from tests.fixtures.game_environments import Cards\n"
        "class Mine(Environment):\n"
        "    name, version, summary, instructions, max_turns = 'mine', '1', '', '', 3\n"
        "    task_source = Cards.task_source\n"
        "    def reset(self, task, seed): ...\n"
        "    def step(self, action): ...\n"
        f"    {body}\n"
    )
    path = tmp_path / "mine.py"
    path.write_text(source)

    with pytest.raises(EnvironmentUnavailable, match="each once, and writes game"):
        find_environment(str(path))

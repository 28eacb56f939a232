"""An AgentGym server that somebody else runs, as an environment of gymfleet.

`ENVIRONMENT = from_agentgym("http://127.0.0.1:36001", "textcraft", train=range(444), test=range(444, 544))`

AgentGym's protocol does not number steps: a step whose reply is lost may or may not have been executed. So no step is
ever sent twice, and a session is lost when its server fails or does not answer. The gateway replays it from the
beginning if the server is declared deterministic.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
from gymfleet_contracts.session import ForkSupport, Split

from gymfleet_envs.environment import AsyncEnvironment, EngineLost, Outcome
from gymfleet_envs.tasks import ListedTasks, Task, TaskSource

_MAX_REPLY_BYTES: Final = 4 << 20
_MAX_TOLD: Final = 300


@dataclass(frozen=True, slots=True)
class Dialect:
    """One AgentGym server's variant of the protocol: no two families are alike."""

    selector: str
    """The field of `/reset` that holds the task's number."""
    by_env_idx: bool = False
    """Whether the session's field is `env_idx`, and `/create` answers with a bare number; otherwise it is `id`."""
    create: Mapping[str, Any] | None = None
    """The body that `/create` requires."""
    reset: Mapping[str, Any] = field(default_factory=dict)
    """Further fields to send to `/reset`."""
    text: str = "observation"
    """The field of a step's reply that holds the observation."""
    score: str = "reward"
    """The field that holds the success so far."""
    solved_at: float = 1.0
    """The value of the `score` field that is success."""
    scored_at_end: bool = False
    """Whether the score counts only in the reply that ends the episode."""
    lists_actions: bool = False
    """Whether AgentGym's client shows `available_actions` below the observation."""
    closes: bool = True
    """Whether the server has `/close`."""


_TOOL: Final = Dialect("id", by_env_idx=True, create={"id": 0}, scored_at_end=True, closes=False)
DIALECTS: Final[Mapping[str, Dialect]] = {
    "alfworld": Dialect("game", reset={"world_type": "Text"}, lists_actions=True, closes=False),
    "babyai": Dialect("data_idx", scored_at_end=True, solved_at=0.5),  # it ends episodes with more than that alone
    "textcraft": Dialect("data_idx", create={"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}),
    "sciworld": Dialect("data_idx", score="score", solved_at=100.0),
    "maze": Dialect("game", closes=False),
    "wordle": Dialect("seed", closes=False),
    "weather": _TOOL,
    "movie": _TOOL,
    "academia": _TOOL,
    "sheet": _TOOL,
    "todo": _TOOL,
    "searchqa": Dialect("id", by_env_idx=True, create={"id": 0}, scored_at_end=True),
    "sqlgym": Dialect("item_id", by_env_idx=True, text="state", closes=False),
    "webshop": Dialect("session_id", by_env_idx=True, text="state", closes=False),
}
"""Dialects by AgentGym's name of the environment."""


class _FromAgentGym(AsyncEnvironment[int]):
    """One session of the server; a task is the number that its `/reset` takes."""

    fork: ClassVar[ForkSupport] = ForkSupport.NONE
    url: ClassVar[str]
    dialect: ClassVar[Dialect]
    timeout_s: ClassVar[float]
    numbers: ClassVar[Mapping[Split, Sequence[int]]]

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(timeout=self.timeout_s, follow_redirects=False)
        self._session: dict[str, int] | None = None

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        """The task numbers given for each split."""
        del data
        tasks = [
            Task(str(number), split, "only", number) for split, numbers in cls.numbers.items() for number in numbers
        ]
        return ListedTasks(cls.name, "agentgym", tasks)

    async def reset(self, task: int, seed: int) -> str:
        """Create a session on the server and begin the task."""
        del seed
        dialect = self.dialect
        made = await self._post("create", dialect.create)
        number = made.get("id") if isinstance(made, dict) else made
        if not isinstance(number, int) or isinstance(number, bool):
            raise EngineLost(f"{self.url}/create answered no number: {_told(made)}")
        self._session = {"env_idx" if dialect.by_env_idx else "id": number}
        begun = await self._post("reset", {dialect.selector: task, **dialect.reset, **self._session})
        if isinstance(begun, list) and begun:
            begun = begun[0]
        return begun if isinstance(begun, str) else self._shown(begun, "reset", "observation")

    async def step(self, action: str) -> Outcome:
        """Send the action, once."""
        reply = await self._post("step", {"action": action, **(self._session or {})})
        if not isinstance(reply, dict) or not isinstance(reply.get("done"), bool):
            raise EngineLost(f"{self.url}/step answered without done: {_told(reply)}")
        done, dialect = bool(reply["done"]), self.dialect
        reached = self._number(reply, dialect.score) / dialect.solved_at
        return Outcome(
            self._shown(reply, "step", dialect.text),
            reward=self._number(reply, "reward"),
            terminated=done,
            score=min(1.0, max(0.0, reached)) if done or not dialect.scored_at_end else 0.0,
        )

    async def close(self) -> None:
        """Close the session on the server, if the server has `/close`."""
        try:
            if self._session is not None and self.dialect.closes:
                await self._post("close", self._session)
        except EngineLost:
            pass  # it is over either way
        finally:
            await self._http.aclose()

    async def _post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the answer's JSON. Raises `EngineLost`, and never retries."""
        where = f"{self.url}/{path}"
        content = bytearray()
        try:
            async with self._http.stream("POST", where, json=body) as response:
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > _MAX_REPLY_BYTES:
                        raise EngineLost(f"{where} answers with more than {_MAX_REPLY_BYTES >> 20} MiB")
        except httpx.HTTPError as error:
            raise EngineLost(f"{where}: {error or type(error).__name__}") from None
        if response.status_code != httpx.codes.OK:
            raise EngineLost(f"{where} answered {response.status_code}: {_told(content.decode(errors='replace'))}")
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            raise EngineLost(f"{where} answered no JSON: {_told(content.decode(errors='replace'))}") from None
        if isinstance(answer, dict) and "error" in answer:  # with status 200, as AgentGym's servers do it
            raise EngineLost(f"{where}: {_told(answer['error'])}")
        return answer

    def _shown(self, reply: Any, path: str, key: str) -> str:
        text = reply.get(key) if isinstance(reply, dict) else None
        if not isinstance(text, str):
            raise EngineLost(f"{self.url}/{path} answered without {key}: {_told(reply)}")
        actions = reply.get("available_actions")
        if self.dialect.lists_actions and isinstance(actions, list):
            return f"{text}\nAVAILABLE ACTIONS: {','.join(map(str, actions))}"
        return text

    def _number(self, reply: Mapping[str, Any], key: str) -> float:
        value = reply.get(key)
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        raise EngineLost(f"{self.url}/step answered {key} {_told(value)}, which is no number")


def from_agentgym(
    url: str,
    name: str,
    *,
    test: Sequence[int],
    train: Sequence[int] = (),
    validation: Sequence[int] = (),
    instructions: str = "",
    max_turns: int = 30,
    title: str | None = None,
    version: str = "1",
    deterministic: bool = False,
    timeout_s: float = 25.0,
    dialect: Dialect | None = None,
) -> type[AsyncEnvironment[int]]:
    """Return an AgentGym server's environment as a gymfleet environment.

    Args:
        url: the server's URL without `/create`, including the path that some servers have: `http://host:36001/maze`.
        name: AgentGym's name of the environment.
        test: numbers of the test tasks, as `/reset` takes them.
        train: numbers of the train tasks.
        validation: numbers of the validation tasks.
        instructions: rules for the model; AgentGym keeps them in its clients.
        max_turns: limit on an episode's turns; AgentGym's servers have none, or a limit of their own.
        title: gymfleet's name of the environment; `agentgym_NAME` by default.
        version: raise it when the server's episodes change.
        deterministic: whether the same task and actions give the same episode; a lost session is then replayed.
        timeout_s: limit on the wait for each answer.
        dialect: the server's variant of the protocol, if it is not one of AgentGym's own.

    Raises:
        ValueError: AgentGym has no such environment, and no dialect was given.
    """
    if (spoken := dialect or DIALECTS.get(name)) is None:
        raise ValueError(f"AgentGym has no {name}: give a dialect, or one of {', '.join(DIALECTS)}")
    fields = {
        "name": title or f"agentgym_{name}", "version": version, "summary": f"AgentGym's {name}, served elsewhere",
        "instructions": instructions or f"You play AgentGym's {name}.", "max_turns": max_turns,
        "deterministic": deterministic, "fork": ForkSupport.REPLAY if deterministic else ForkSupport.NONE,
        "url": url.rstrip("/"), "dialect": spoken, "timeout_s": timeout_s,
        "numbers": {"train": train, "validation": validation, "test": test},
    }  # fmt: skip
    return type("FromAgentGym", (_FromAgentGym,), fields)


def _told(value: object) -> str:
    return " ".join(str(value).split())[:_MAX_TOLD] or "nothing"

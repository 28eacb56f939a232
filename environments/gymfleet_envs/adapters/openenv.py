"""An OpenEnv server that somebody else runs, as an environment of gymfleet.

`ENVIRONMENT = from_openenv("http://127.0.0.1:8000", "echo", solved_at=1.0, train=range(900), test=range(900, 1000))`

A session is one connection, on which answers come in the order of the requests. A broken connection or a late answer
loses the session: OpenEnv's clients would reconnect, to another world that was never reset.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from gymfleet_contracts.session import ForkSupport, Split
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from gymfleet_envs.environment import AsyncEnvironment, EngineLost, Outcome
from gymfleet_envs.tasks import ListedTasks, Task, TaskSource

_MAX_REPLY_BYTES: Final = 4 << 20
_MAX_TOLD: Final = 300
_NOT_UNDERSTOOD: Final = "VALIDATION_ERROR"
Act = Callable[[str], Mapping[str, Any] | None]
Observe = Callable[[Mapping[str, Any]], str]


class _FromOpenEnv(AsyncEnvironment[int]):
    """One connection; a task is the seed of its `reset`."""

    fork: ClassVar[ForkSupport] = ForkSupport.NONE
    url: ClassVar[str]
    act: ClassVar[Act]
    observe: ClassVar[Observe]
    solved_at: ClassVar[float]
    reset_with: ClassVar[Mapping[str, Any]]
    timeout_s: ClassVar[float]
    seeds: ClassVar[Mapping[Split, Sequence[int]]]

    def __init__(self) -> None:
        self._socket: ClientConnection | None = None
        self._return = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        """The seeds given for each split."""
        del data
        tasks = [Task(str(seed), split, "only", seed) for split, seeds in cls.seeds.items() for seed in seeds]
        return ListedTasks(cls.name, "openenv", tasks)

    async def reset(self, task: int, seed: int) -> str:
        """Connect and reset."""
        del seed
        try:
            async with asyncio.timeout(self.timeout_s):
                self._socket = await connect(self.url, max_size=_MAX_REPLY_BYTES)
        except (OSError, WebSocketException, TimeoutError) as error:
            raise EngineLost(f"{self.url}: {error or 'no connection in time'}") from None
        begun = await self._asked("reset", {"seed": task, **self.reset_with})
        if isinstance(begun, str):
            raise EngineLost(f"{self.url} refused reset: {begun}")
        return self._shown(begun)

    async def step(self, action: str) -> Outcome:
        """Send the action, once."""
        body = type(self).act(action)
        answer = "This is no action." if body is None else await self._asked("step", body)
        if isinstance(answer, str):
            return Outcome(answer, score=self._score(), action_valid=False)
        reward, done = answer.get("reward"), answer.get("done")
        given = isinstance(reward, bool | int | float) and math.isfinite(reward)
        if not isinstance(done, bool) or not (given or reward is None):
            raise EngineLost(f"{self.url} answered reward {_told(reward)} and done {_told(done)}")
        self._return += float(reward or 0.0)  # null: this step has none
        return Outcome(self._shown(answer), reward=float(reward or 0.0), terminated=done, score=self._score())

    async def close(self) -> None:
        """Close the connection, which ends the session on the server."""
        if self._socket is not None:
            await self._socket.close()

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """Return the answer's observation payload, or why the action was not understood. Raises `EngineLost`."""
        if self._socket is None:
            raise EngineLost(f"{self.url} is not connected")
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._socket.send(json.dumps({"type": kind, "data": data}))
                frame = json.loads(await self._socket.recv())
        except TimeoutError:
            # A late answer would be taken for the answer to the next action.
            await self._socket.close()
            raise EngineLost(f"{self.url} did not answer {kind} within {self.timeout_s:g} s") from None
        except (OSError, WebSocketException, ValueError, RecursionError) as error:
            raise EngineLost(f"{self.url}, {kind}: {_told(error)}") from None
        body = frame.get("data") if isinstance(frame, dict) else None
        if not isinstance(body, dict):
            raise EngineLost(f"{self.url} answered {kind} with {_told(frame)}")
        if frame.get("type") == "error":
            if body.get("code") == _NOT_UNDERSTOOD:
                return _told(body.get("message"))
            raise EngineLost(f"{self.url}, {kind}: {_told(body.get('code'))}: {_told(body.get('message'))}")
        return body

    def _shown(self, answer: Mapping[str, Any]) -> str:
        observation = answer.get("observation")
        if not isinstance(observation, dict):
            raise EngineLost(f"{self.url} answered observation {_told(observation)}")
        return type(self).observe(observation)

    def _score(self) -> float:
        return min(1.0, max(0.0, self._return / self.solved_at))


def message(action: str) -> Mapping[str, Any]:
    """Return an action in the form that most of OpenEnv's text environments take."""
    return {"message": action}


def plainest(observation: Mapping[str, Any]) -> str:
    """Return an observation's only field if it is text, or else all fields as JSON."""
    texts = {key: value for key, value in observation.items() if key != "metadata"}
    only = next(iter(texts.values()), None)
    return only if len(texts) == 1 and isinstance(only, str) else json.dumps(texts)


def from_openenv(
    url: str,
    name: str,
    *,
    solved_at: float,
    test: Sequence[int],
    train: Sequence[int] = (),
    validation: Sequence[int] = (),
    act: Act = message,
    observe: Observe = plainest,
    reset_with: Mapping[str, Any] | None = None,
    instructions: str = "",
    max_turns: int = 30,
    version: str = "1",
    deterministic: bool = False,
    timeout_s: float = 25.0,
) -> type[AsyncEnvironment[int]]:
    """Return an OpenEnv server's environment as a gymfleet environment.

    Args:
        url: the server's URL, as OpenEnv's clients take it; `/ws` is added.
        name: gymfleet's name of the environment.
        solved_at: the sum of rewards that is success; the score is the fraction of it that was reached.
        test: seeds of the test tasks.
        train: seeds of the train tasks.
        validation: seeds of the validation tasks.
        act: turns an action into the server's action model; returns None if it cannot.
        observe: turns an observation into text.
        reset_with: fields to send to `reset` besides the seed.
        instructions: rules for the model.
        max_turns: limit on an episode's turns.
        version: raise it when the server's episodes change.
        deterministic: whether the same seed and actions give the same episode; a lost session is then replayed.
        timeout_s: limit on the wait for each answer.
    """
    if solved_at <= 0:
        raise ValueError(f"{name}: solved_at is the sum of rewards that is success, and must be above 0")
    fields = {
        "name": name, "version": version, "summary": f"OpenEnv's {name}, served elsewhere",
        "instructions": instructions or f"You play {name}.", "max_turns": max_turns, "deterministic": deterministic,
        "fork": ForkSupport.REPLAY if deterministic else ForkSupport.NONE,
        "url": url.rstrip("/").replace("http", "ws", 1) + "/ws", "act": staticmethod(act),
        "observe": staticmethod(observe), "solved_at": solved_at, "reset_with": reset_with or {},
        "timeout_s": timeout_s, "seeds": {"train": train, "validation": validation, "test": test},
    }  # fmt: skip
    return type("FromOpenEnv", (_FromOpenEnv,), fields)


def _told(value: object) -> str:
    return " ".join(str(value).split())[:_MAX_TOLD] or "nothing"

"""AgentGym's servers, one protocol in fifteen dialects: the messages that its clients send and read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

Body = dict[str, Any]


def _first(body: Any) -> Any:
    return body[0] if isinstance(body, list) and body else None


def _key(name: str) -> Callable[[Any], Any]:
    return lambda body: body.get(name) if isinstance(body, dict) else None


def _described(body: Any) -> Any:
    """Join the task and the room as sciworld's client does; return None if one is missing."""
    parts = [_key(name)(body) for name in ("task_description", "observation")]
    return "\n".join(parts) if all(isinstance(part, str) for part in parts) else None


def _itself(body: Any) -> Any:
    return body


@dataclass(frozen=True, slots=True)
class Wire:
    """One server's dialect."""

    env: str
    select: str
    """The field of `/reset` that chooses the task."""
    path: str = ""
    """The path below the server's root; a client's base URL ends with it."""
    create_body: Body | None = None
    created: Callable[[Any], Any] = field(default=_key("id"))
    id_key: str = "id"
    reset_surplus: Body = field(default_factory=dict)
    started: Callable[[Any], Any] = field(default=_key("observation"))
    seen: str = "observation"
    done: str = "done"
    closes: bool = False
    """Whether the server has a `/close`. The client also calls it on some servers without one, which answer as they
    like."""
    tries_close: bool = False
    tells_errors: bool = True
    """Whether the answer to a client's mistake is status 200 with `{"error"}`; otherwise it is a 5xx."""
    refuses_after_done: bool = True
    score: bool = False
    """Whether the client takes `score` as the reward."""
    shows_task: bool = False
    """Whether `GET /observation` always shows the first observation instead of the last one."""
    vocabulary: bool = False
    starts_at_create: bool = False

    def reset(self, number: Any, task: Any) -> Body:
        """Return the body of `/reset`."""
        return {self.id_key: number, self.select: task, **self.reset_surplus}


_TEXTCRAFT: Final[Body] = {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}


def _tool(env: str, **dialect: Any) -> Wire:
    base: Body = {"select": "id", "create_body": {"id": 0}, "created": _itself, "id_key": "env_idx"}
    common: Body = {"started": _itself, "tells_errors": False, "refuses_after_done": False}
    return Wire(env, **{**base, **common, **dialect})


WIRES: Final = {
    wire.env: wire
    for wire in (
        Wire("textcraft", "data_idx", create_body=_TEXTCRAFT, closes=True, refuses_after_done=False,
             starts_at_create=True),
        Wire("babyai", "data_idx", closes=True, score=True),
        Wire("maze", "game", path="/maze"),
        Wire("wordle", "seed", path="/wordle", vocabulary=True),
        Wire("alfworld", "game", reset_surplus={"world_type": "Text"}, tries_close=True),
        Wire("sciworld", "data_idx", started=_described, closes=True, score=True),
        *(_tool(env) for env in ("weather", "movie", "academia", "sheet", "todo")),
        _tool("searchqa", closes=True, starts_at_create=True, shows_task=True),
        _tool("sqlgym", select="item_id", create_body=None, started=_first, seen="state"),
        _tool("webshop", select="session_id", create_body=None, started=_first, seen="state", tries_close=True),
        _tool("webarena", select="idx", create_body=None, created=_key("env_idx"), reset_surplus={"seed": 0},
              started=_key("observation"), done="terminated", closes=True),
    )
}  # fmt: skip
BANNERS: Final = {"textcraft": "textcraft", "babyai": "babyai", "sciworld": "sciworld", "scienceworld": "sciworld",
                  "alfworld": "alfworld", "webshop": "webshop"}  # fmt: skip
"""Words of `GET /`, in lower case, and the environment that each identifies."""

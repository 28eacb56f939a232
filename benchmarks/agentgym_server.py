"""A server built like AgentGym's own env servers: one uvicorn process, plain functions, all games in a dictionary.

It serves our TextCraft over AgentGym's wire protocol, so that both sides of a comparison play the same game. It is a
stand-in: AgentGym's package is not on the index from which gymfleet installs.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from gymfleet_env_server.catalogue import load_entry
from pydantic import BaseModel


class Action(BaseModel):
    """AgentGym's request for a step."""

    id: int
    action: str


class Reset(BaseModel):
    """AgentGym's request for an episode."""

    id: int
    data_idx: int = 0


class Create(BaseModel):
    """AgentGym's request for an id; AgentGym's servers ignore its fields, too."""

    minecraft_dir: str | None = None
    commands: str | None = None
    goal: str | None = None


entry = load_entry("textcraft", {})
games: list[dict[str, Any]] = []
app = FastAPI()


def begin(number: int, task: int) -> dict[str, Any]:
    """Begin another episode under the id."""
    environment = entry.make()
    count = entry.tasks.count("train", entry.spec.default_level)
    data = entry.tasks.by_index("train", entry.spec.default_level, task % count).data
    games[number] = {
        "environment": environment,
        "observation": environment.reset(data, 0),
        "reward": 0.0,
        "done": False,
    }
    return {"id": number, **{name: games[number][name] for name in ("observation", "reward", "done")}}


@app.post("/create")
def create(_: Create) -> dict[str, Any]:
    """Return a new id, with an episode."""
    games.append({})
    return begin(len(games) - 1, len(games) - 1)


@app.post("/reset")
def reset(body: Reset) -> dict[str, Any]:
    """Begin another episode under an id."""
    return begin(body.id, body.data_idx)


@app.post("/step")
def step(body: Action) -> dict[str, Any]:
    """Take one action."""
    game = games[body.id]
    outcome = game["environment"].step(body.action)
    game |= {"observation": outcome.observation, "reward": outcome.reward, "done": outcome.terminated}
    return {name: game[name] for name in ("observation", "reward", "done")}


if __name__ == "__main__":
    # As AgentGym requires it: uvicorn alone, without the C extensions that gymfleet installs with it.
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", http="h11", loop="asyncio")

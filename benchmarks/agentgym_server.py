"""What AgentGym's own env servers are made of: one process of uvicorn, plain functions, all games in a dictionary.

Serves our TextCraft on AgentGym's wire, so that both sides of a comparison play the same game. A stand-in: AgentGym's
package is not on the index from which gymfleet installs.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from gymfleet_env_server.catalogue import load_entry
from pydantic import BaseModel


class Action(BaseModel):
    """AgentGym's request of a step."""

    id: int
    action: str


class Reset(BaseModel):
    """AgentGym's request of an episode."""

    id: int
    data_idx: int = 0


class Create(BaseModel):
    """AgentGym's request of an id; what it names is ignored there, too."""

    minecraft_dir: str | None = None
    commands: str | None = None
    goal: str | None = None


entry = load_entry("textcraft", {})
games: list[dict[str, Any]] = []
app = FastAPI()


def begin(number: int, task: int) -> dict[str, Any]:
    """Another episode under the id."""
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
    """A new id, with an episode."""
    games.append({})
    return begin(len(games) - 1, len(games) - 1)


@app.post("/reset")
def reset(body: Reset) -> dict[str, Any]:
    """Another episode."""
    return begin(body.id, body.data_idx)


@app.post("/step")
def step(body: Action) -> dict[str, Any]:
    """One action."""
    game = games[body.id]
    outcome = game["environment"].step(body.action)
    game |= {"observation": outcome.observation, "reward": outcome.reward, "done": outcome.terminated}
    return {name: game[name] for name in ("observation", "reward", "done")}


if __name__ == "__main__":
    # As AgentGym asks for it: uvicorn alone, without the parts in C that gymfleet installs beside it.
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", http="h11", loop="asyncio")

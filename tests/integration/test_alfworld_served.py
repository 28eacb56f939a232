"""ALFWorld's game files, served: what a damaged one does to its session, and not to others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_envs.alfworld.generate import generated_tasks

from tests.conformance.env_server import EnvServer


def write_games(root: Path) -> None:
    """Two sound games, and one whose PDDL is damaged in a way that only playing it shows."""
    for number in range(3):
        household = generated_tasks().by_index("train", "tiny", number).data
        game, goal = household.game("classic"), household.goal
        problem = game.problem.replace("(atLocation agent1", "(atLocation agent7") if number == 2 else game.problem
        name = f"{goal.task_type}-{goal.thing}-None-{goal.receptacle}-301"
        folder = root / "json_2.1.1" / ("valid_unseen" if number == 2 else "train") / name / f"trial_T{number}"
        folder.mkdir(parents=True)
        text = json.dumps({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": problem})
        (folder / "game.tw-pddl").write_text(text)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("alfworld")
    write_games(directory / "data")
    data = json.dumps({"alfworld": str(directory / "data")})
    with EnvServer(directory, "alfworld", shards=1, data=data) as server, httpx.Client(base_url=server.url) as http:
        yield http


def opened(http: httpx.Client, trial: str) -> dict[str, Any]:
    response = http.post("/v1/sessions", json={"env": "alfworld", "task_id": trial})
    assert response.status_code == 201, response.text
    return dict(response.json())


def stepped(http: httpx.Client, session: dict[str, Any], index: int, action: str) -> dict[str, Any]:
    path = f"/v1/sessions/{session['session_id']}/steps"
    return dict(http.post(path, json={"index": index, "action": action}).raise_for_status().json())


def solved(http: httpx.Client, session: dict[str, Any], index: int) -> bool:
    while index < 50:
        move = http.get(f"/v1/sessions/{session['session_id']}/expert").raise_for_status().json()
        result = stepped(http, session, index, move["action"])
        if result["terminated"]:
            return bool(result["score"] == 1)
        index += 1
    return False


def test_damaged_game_is_a_typed_failure_and_the_neighbours_play_on(http: httpx.Client) -> None:
    neighbour = opened(http, "trial_T0")
    stepped(http, neighbour, 0, "look")

    response = http.post("/v1/sessions", json={"env": "alfworld", "task_id": "trial_T2"})

    assert (response.status_code, response.json()["type"]) == (500, "/problems/environment-failed")
    assert "agent7" not in response.text
    assert solved(http, neighbour, 1)
    assert solved(http, opened(http, "trial_T1"), 0)


def test_first_info_and_every_steps_info_list_the_admissible_actions(http: httpx.Client) -> None:
    session = opened(http, "trial_T0")

    assert session["info"]["task_type"] == "pick_and_place_simple"
    assert "look" in session["info"]["available_actions"]
    going = next(action for action in session["info"]["available_actions"] if action.startswith("go to"))
    actions = stepped(http, session, 0, going)["info"]["available_actions"]
    assert f"examine {going.removeprefix('go to ')}" in actions


def test_fork_by_replay_goes_its_own_way(http: httpx.Client) -> None:
    parent = opened(http, "trial_T1")
    move = http.get(f"/v1/sessions/{parent['session_id']}/expert").json()["action"]
    stepped(http, parent, 0, move)

    (child,) = http.post(f"/v1/sessions/{parent['session_id']}/fork", json={"count": 1}).raise_for_status().json()

    assert child["observation"] == http.get(f"/v1/sessions/{parent['session_id']}").json()["observation"]
    assert solved(http, child, 1)
    assert stepped(http, parent, 1, "inventory")["observation"].startswith("You are ")
    assert solved(http, parent, 2)

"""The host of a lateral thinking puzzle as a model, asked by a served environment; nonsense loses the session."""

import json
from pathlib import Path

import httpx
from gymfleet_envs.lateral_thinking.generate import generated_tasks

from tests.conformance.env_server import EnvServer
from tests.fixtures.chat_server import ChatServer, Scripted, completion


def test_a_model_hosts_by_option_and_nonsense_is_no_score(tmp_path: Path) -> None:
    key = generated_tasks().by_index("train", "two_keys", 0).data.keys[0]
    with ChatServer() as chat:
        models = json.dumps({"lateral_thinking": {"host": {"url": chat.url, "model": "m"}}})
        options = json.dumps({"lateral_thinking": {"host": "model"}})
        with EnvServer(tmp_path, "lateral_thinking", models=models, options=options) as server:
            body = {"env": "lateral_thinking", "task_index": 0, "level": "two_keys", "split": "train"}
            session = httpx.post(f"{server.url}/v1/sessions", json=body).raise_for_status().json()
            steps = f"{server.url}/v1/sessions/{session['session_id']}/steps"

            chat.script.extend([Scripted(completion("Yes")), Scripted(completion("0"))])
            first = httpx.post(steps, json={"index": 0, "action": f"Is it true that {key}?"}).json()
            chat.script.extend([Scripted(completion("Perhaps")), Scripted(completion("I may not say"))])
            lost = httpx.post(steps, json={"index": 1, "action": "Is it cold in this story, or is it warm?"})

    assert (first["observation"], first["score"], first["terminated"]) == ("Yes.", 0.0, False)
    assert chat.asked[0]["messages"][1]["content"] == json.dumps(f"Is it true that {key}?")
    assert (lost.status_code, lost.json()["type"]) == (410, "/problems/session-lost")


def test_without_the_option_no_model_is_needed(tmp_path: Path) -> None:
    with EnvServer(tmp_path, "lateral_thinking") as server:
        spec = httpx.get(f"{server.url}/v1/environments/lateral_thinking").raise_for_status().json()

    assert "models" not in spec

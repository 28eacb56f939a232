"""tau-bench's customer as a model, asked by a served environment: by option, and by that alone."""

import json
from pathlib import Path
from typing import Any

import httpx
from gymfleet_envs.tau.customer import OPENING, STOP
from gymfleet_envs.tau.task import Call

from tests.conformance.env_server import EnvServer
from tests.fixtures.chat_server import ChatServer, Scripted, completion


def opened(server: EnvServer) -> dict[str, Any]:
    body = {"env": "tau_retail", "task_index": 0, "level": "cancel", "split": "train"}
    session: dict[str, Any] = httpx.post(f"{server.url}/v1/sessions", json=body).raise_for_status().json()
    return session


def test_a_model_is_the_customer_by_option(tmp_path: Path) -> None:
    with ChatServer() as chat:
        models = json.dumps({"tau_retail": {"customer": {"url": chat.url, "model": "m"}}})
        options = json.dumps({"tau_retail": {"customer": "model"}})
        with EnvServer(tmp_path, "tau_retail", models=models, options=options) as server:
            chat.script.extend([Scripted(completion("I am a model.")), Scripted(completion(STOP))])

            session = opened(server)
            step = {"index": 0, "action": Call.of("respond", content="Anything else?").text}
            result = httpx.post(f"{server.url}/v1/sessions/{session['session_id']}/steps", json=step).json()

    assert session["observation"] == "I am a model."
    assert (result["observation"], result["terminated"], result["score"]) == (STOP, True, 0.0)
    assert len(chat.asked) == 2


def test_without_the_option_no_model_is_needed(tmp_path: Path) -> None:
    with EnvServer(tmp_path, "tau_retail") as server:
        spec = httpx.get(f"{server.url}/v1/environments/tau_retail").raise_for_status().json()

        assert opened(server)["observation"] == OPENING
        assert not spec.get("models")

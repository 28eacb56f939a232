"""What schemathesis cannot find out from a document: names that exist, and what JSON Schema cannot say.

Loaded by the `schemathesis` command in a process of its own, by `SCHEMATHESIS_HOOKS`.
"""

import itertools
import json
import os
import urllib.request
from typing import Any, Final

import schemathesis
from gymfleet_contracts.trajectory import MAX_GROUP_SIZE
from schemathesis import Case, HookContext, Response
from schemathesis.generation import GenerationMode

URL: Final = os.environ["FUZZ_URL"]
ENVIRONMENTS: Final = os.environ.get("FUZZ_ENVIRONMENTS", "").split()
_TIMEOUT_S: Final = 10.0
# One in four keeps what was made up: names that do not exist must be answered well too.
_real: Final = itertools.cycle([True, True, True, False])
_environments: Final = itertools.cycle(ENVIRONMENTS or [""])


def _call(method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}{path}", data, {"content-type": "application/json"}, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - a server of the test's
        return json.load(answer)


def _session() -> str:
    """A session that lives, for one call."""
    task = {"env": next(_environments), "task_index": 0, "lease_s": 30.0}
    session_id: str = _call("POST", "/v1/sessions", task)["session_id"]
    return session_id


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Put names that exist into well-formed calls."""
    positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    for node in _nodes(case.body) if positive else ():
        _fit(node)
    if not (ENVIRONMENTS and positive and next(_real)):
        return
    path = case.path_parameters
    if "session_id" in path:
        path["session_id"] = _session()
    if "env" in path:
        path["env"] = next(_environments)
    if isinstance(case.body, dict) and "env" in case.body:
        case.body["env"] = next(_environments)
    for item in case.body if isinstance(case.body, list) else ():
        if isinstance(item, dict) and "session_id" in item:
            item["session_id"] = _session()


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    """Leave out bodies whose fields fit the schema one by one and not together."""
    return not any(_crossed(node) for node in _nodes(case.body))


@schemathesis.hook
def after_call(context: HookContext, case: Case[Any], response: Response) -> None:
    """Jobs that were begun are ended: other tests need the service too."""
    if response.status_code == 202:
        _call("DELETE", f"/v1/jobs/{response.json()['job_id']}")


def _fit(node: dict[str, Any]) -> None:
    """Make the parts of a trajectory, or of a request for a group, agree with one another."""
    if {"trajectory_id", "policy", "turns"} <= node.keys():
        node["trajectory_id"] = f"{node['run_id']}/{node['group_id']}/{int(node['sample'])}"
        if node.get("group_size") is not None:
            node["group_size"] = None if node["sample"] >= MAX_GROUP_SIZE else MAX_GROUP_SIZE
        if node.get("rejected"):
            node["selected"] = False
        policy = node["policy"]
        low, high = sorted((policy["version_min"], policy["version_max"]))
        policy["version_min"], policy["version_max"] = low, high
        for turn in node["turns"]:
            num_tokens = len(turn["response_token_ids"])
            turn["response_logprobs"] = [-0.5] * num_tokens
            turn["context"] = "continued"  # the first one has nothing to replace
            turn["policy_versions"] = [{"version": low, "num_tokens": num_tokens}] if num_tokens else []
    if "num_samples" in node and "strategy" in node:
        node["strategy"] = {"use": "independent"}
    if {"num_samples", "samples"} <= node.keys() and node["samples"] is not None:
        node["samples"] = [sample for sample in node["samples"] if sample < node["num_samples"]]


def _crossed(node: dict[str, Any]) -> bool:
    low, high = node.get("min_tokens", 20), node.get("max_tokens", 450)
    return isinstance(low, int | float) and isinstance(high, int | float) and low > high


def _nodes(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for child in value.values() for found in _nodes(child))]
    return [found for child in value for found in _nodes(child)] if isinstance(value, list) else []

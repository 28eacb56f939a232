"""OpenEnv over HTTP: health, description, and the stateless forms of reset and step."""

from typing import Final

from gymfleet_conformance.openenv.target import SUITE, OpenEnvTarget, check_observation
from gymfleet_conformance.server_under_test import decoded, require, shown

_JSON: Final = {"content-type": "application/json"}


@SUITE.must("openenv.health")
async def health(target: OpenEnvTarget) -> None:
    """`GET /health` says `healthy`."""
    body = decoded(await target.server.request("GET", "/health"))
    require(body.get("status") == "healthy", f"says {body}")


@SUITE.must("openenv.metadata")
async def metadata(target: OpenEnvTarget) -> None:
    """`GET /metadata` has a name and a description."""
    body = decoded(await target.server.request("GET", "/metadata"))
    for field in ("name", "description"):
        require(bool(body.get(field)), f"{field} is {body.get(field)!r}")


@SUITE.must("openenv.schema")
async def schema(target: OpenEnvTarget) -> None:
    """`GET /schema` has JSON schemas of action, observation and state."""
    body = await target.schema()
    for field in ("action", "observation", "state"):
        one = body.get(field)
        require(isinstance(one, dict) and ("properties" in one or "type" in one or "$ref" in one), f"{field}: {one!r}")


@SUITE.should("openenv.openapi")
async def openapi(target: OpenEnvTarget) -> None:
    """`GET /openapi.json` names reset, step and state."""
    body = decoded(await target.server.request("GET", "/openapi.json"))
    paths = " ".join(body.get("paths", {}))
    missing = [path for path in ("/reset", "/step", "/state") if path not in paths]
    require(not missing, f"lacks {', '.join(missing)}")


@SUITE.must("openenv.http-reset")
async def http_reset(target: OpenEnvTarget) -> None:
    """`POST /reset` answers an observation."""
    check_observation(decoded(await target.server.request("POST", "/reset", json={})))


@SUITE.must("openenv.http-bad-seed")
async def http_bad_seed(target: OpenEnvTarget) -> None:
    """`POST /reset` with a seed that is no number or negative is a 422."""
    for seed in ("x", -1, [1]):
        response = await target.server.request("POST", "/reset", json={"seed": seed})
        require(response.status_code == 422, f"seed {seed!r}: saw {shown(response)}; 422 would be right")


@SUITE.must("openenv.http-bad-action")
async def http_bad_action(target: OpenEnvTarget) -> None:
    """`POST /step` without an action, or with one of unknown fields, is a 422."""
    for body in ({}, {"action": 7}, {"action": {"no_such_field": 1}}):
        response = await target.server.request("POST", "/step", json=body)
        require(response.status_code == 422, f"{body}: saw {shown(response)}; 422 would be right")


@SUITE.must("openenv.http-garbage")
async def http_garbage(target: OpenEnvTarget) -> None:
    """Bodies that are no JSON are a 4xx, never a 5xx."""
    for path in ("/reset", "/step"):
        for content in (b"{", b"\xff", b"[" * 100_000):
            response = await target.server.request("POST", path, content=content, headers=_JSON)
            right = 400 <= response.status_code < 500
            require(right, f"{path} {content[:4]!r}: saw {shown(response)}; 422 would be right")


@SUITE.should("openenv.http-step-needs-an-episode")
async def http_step_needs_an_episode(target: OpenEnvTarget) -> None:
    """`POST /step`, which belongs to no episode, is refused and not executed in a fresh environment."""
    response = await target.server.request("POST", "/step", json={"action": await target.action()})
    require(response.status_code >= 400, f"saw {shown(response)}; a refusal would be right")

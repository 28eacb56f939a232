"""The service itself: health, metrics, its description and its environments."""

import pkgutil
import re
from importlib.metadata import entry_points
from typing import Any, Final

from gymfleet_contracts import formats
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE
from gymfleet_contracts.session import EnvironmentSpec

from gymfleet_conformance.native.target import (
    SUITE,
    UNKNOWN_ENVIRONMENT,
    NativeTarget,
    problem_of,
    read,
    read_list,
    refused,
)
from gymfleet_conformance.server_under_test import decoded, excerpt, require

_SAMPLE: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+0-9.eEinfNa]+( -?\d+)?")
_PATHS: Final = (
    "/v1/environments",
    "/v1/sessions",
    "/v1/sessions/{session_id}",
    "/v1/sessions/{session_id}/steps",
    "/v1/sessions/{session_id}/fork",
    "/v1/sessions/{session_id}/lease",
    "/v1/steps",
)
_ORIGIN: Final = "https://elsewhere.example"


@SUITE.must("service.health")
async def health(target: NativeTarget) -> None:
    """`GET /healthz` answers 200 with JSON."""
    decoded(await target.server.request("GET", "/healthz"))


@SUITE.must("service.ready")
async def ready(target: NativeTarget) -> None:
    """`GET /readyz` answers 200 while sessions can be opened."""
    decoded(await target.server.request("GET", "/readyz"))


@SUITE.must("service.metrics")
async def metrics(target: NativeTarget) -> None:
    """`GET /metrics` is Prometheus text with at least one sample."""
    response = await target.server.request("GET", "/metrics")
    require(response.status_code == 200, f"saw {response.status_code}; 200 would be right")
    lines = [line for line in response.text.splitlines() if line and not line.startswith("#")]
    require(bool(lines), "there is no sample")
    wrong = [line for line in lines if _SAMPLE.fullmatch(line.strip()) is None]
    require(not wrong, f"no sample of Prometheus' text format: {excerpt(wrong[:1])}")


@SUITE.must("service.openapi")
async def openapi(target: NativeTarget) -> None:
    """`GET /openapi.json` is OpenAPI 3 and names every path of the session API."""
    api = decoded(await target.server.request("GET", "/openapi.json"))
    require(str(api.get("openapi", "")).startswith("3."), f"says openapi {api.get('openapi')!r}; 3.x would be right")
    missing = [path for path in _PATHS if path not in api.get("paths", {})]
    require(not missing, f"lacks {', '.join(missing)}")


@SUITE.must("service.openapi-lists-problems")
async def openapi_problems(target: NativeTarget) -> None:
    """The description of a step lists 404, 409, 413 and 422 as problem documents."""
    api = decoded(await target.server.request("GET", "/openapi.json"))
    responses: dict[str, Any] = api["paths"]["/v1/sessions/{session_id}/steps"]["post"]["responses"]
    for status in ("404", "409", "413", "422"):
        require(status in responses, f"lists {', '.join(responses)}; {status} is missing")
        media = responses[status].get("content", {})
        require(PROBLEM_MEDIA_TYPE in media, f"{status} is described as {list(media)}; not as {PROBLEM_MEDIA_TYPE}")


@SUITE.must("service.environments-listed")
async def environments_listed(target: NativeTarget) -> None:
    """`GET /v1/environments` lists every environment once."""
    names = [one.name for one in read_list(EnvironmentSpec, await target.server.request("GET", "/v1/environments"))]
    require(target.env in names, f"lists {', '.join(names)}; not {target.env}")
    require(len(set(names)) == len(names), f"lists one twice: {', '.join(names)}")


@SUITE.must("service.environment-by-name")
async def environment_by_name(target: NativeTarget) -> None:
    """`GET /v1/environments/{env}` says the same as the list."""
    one = read(EnvironmentSpec, await target.server.request("GET", f"/v1/environments/{target.env}"))
    require(one == target.spec, "differs from the entry of the list")


@SUITE.must("service.environment-unknown")
async def environment_unknown(target: NativeTarget) -> None:
    """An environment that is not served is a 404 `unknown-environment`."""
    refused(await target.server.request("GET", "/v1/environments/no_such_environment"), UNKNOWN_ENVIRONMENT)


@SUITE.must("service.spec-complete")
async def spec_complete(target: NativeTarget) -> None:
    """The spec has rules, levels, turns and tasks, and names a known reply format."""
    spec = target.spec
    require(bool(spec.instructions.strip()), "instructions are empty")
    require(bool(spec.version), "version is empty")
    require(spec.max_turns > 0, f"max_turns is {spec.max_turns}")
    require(spec.max_action_chars > 0, f"max_action_chars is {spec.max_action_chars}")
    require(spec.default_level in spec.levels, f"default_level {spec.default_level!r} is not among {spec.levels}")
    require(any(spec.splits.values()), f"there is no task: {spec.splits}")
    included = {module.name for module in pkgutil.iter_modules(formats.__path__) if not module.name.startswith("_")}
    known = sorted(included | entry_points(group="gymfleet.formats").names)
    require(spec.format in known, f"format {spec.format!r} is unknown; known: {', '.join(known)}")


@SUITE.should("service.unknown-route-is-a-problem")
async def unknown_route(target: NativeTarget) -> None:
    """A path that does not exist is a 404 problem document."""
    response = await target.server.request("GET", "/v1/no-such-path")
    problem_of(response)
    require(response.status_code == 404, f"saw {response.status_code}; 404 would be right")


@SUITE.should("service.wrong-method-is-a-problem")
async def wrong_method(target: NativeTarget) -> None:
    """A method that a path does not take is a 405 problem document."""
    response = await target.server.request("PUT", "/v1/sessions", json={})
    problem_of(response)
    require(response.status_code == 405, f"saw {response.status_code}; 405 would be right")


@SUITE.must("service.no-credentials-for-any-origin")
async def no_credentials_for_any_origin(target: NativeTarget) -> None:
    """A page of any origin is not let in with the user's credentials (CORS)."""
    asked = {"Origin": _ORIGIN, "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET"):
        headers = (await target.server.request(method, "/v1/environments", headers=asked)).headers
        allowed = headers.get("access-control-allow-origin", "") in {"*", _ORIGIN}
        credentials = headers.get("access-control-allow-credentials", "").lower() == "true"
        require(not (allowed and credentials), f"{method} lets {_ORIGIN} in with credentials")

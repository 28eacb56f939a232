"""Detection of a server's protocol and environments."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx
from gymfleet_contracts.session import EnvironmentSpec
from pydantic import TypeAdapter, ValidationError

from gymfleet_conformance.agentgym.target import AgentGymTarget
from gymfleet_conformance.agentgym.wire import BANNERS, WIRES
from gymfleet_conformance.check import Protocol
from gymfleet_conformance.native.target import NativeTarget
from gymfleet_conformance.openenv.target import at_site
from gymfleet_conformance.server_under_test import ServerUnderTest, Target, excerpt

_SPECS = TypeAdapter(list[EnvironmentSpec])
_OK: Final = 200
_WRONG_METHOD: Final = 405
_KEY_WANTED: Final = frozenset({401, 403})
Targets = list[tuple[str, Callable[[], Target]]]


class NotAServer(Exception):
    """No server that the kit knows answers there, or not the requested one."""


async def find_protocol(server: ServerUnderTest) -> Protocol:
    """Find the protocol by asking as each protocol's client would. Raises `NotAServer`."""
    if isinstance(await _json(server, "/v1/environments"), list):
        return Protocol.NATIVE
    if isinstance(await _json(server, "/health"), dict) and isinstance(await _json(server, "/schema"), dict):
        return Protocol.OPENENV
    if await _agentgym_env(server) is not None:
        return Protocol.AGENTGYM
    raise NotAServer(
        f"{server.url} speaks neither the session API nor OpenEnv's protocol nor AgentGym's; "
        "say which it should be with --protocol, and for AgentGym the environment with --env"
    )


async def find_targets(server: ServerUnderTest, protocol: Protocol, envs: Sequence[str]) -> Targets:
    """Return a name and a maker of targets for each environment to examine. Raises `NotAServer`."""
    if protocol is Protocol.NATIVE:
        return await _native(server, envs)
    if protocol is Protocol.OPENENV:
        return [(envs[0] if envs else "", lambda: at_site(server))]
    return await _agentgym(server, envs)


async def _native(server: ServerUnderTest, envs: Sequence[str]) -> Targets:
    try:
        response = await server.request("GET", "/v1/environments")
        if response.status_code != _OK:
            raise NotAServer(f"{server.url}/v1/environments answers {response.status_code} {excerpt(response.text)}")
        specs = {spec.name: spec for spec in _SPECS.validate_json(response.content)}
    except ValidationError as error:
        raise NotAServer(f"{server.url}/v1/environments lists no environments: {excerpt(error)}") from None
    if unknown := [env for env in envs if env not in specs]:
        raise NotAServer(f"{server.url} has no environment {unknown[0]!r}; it has {', '.join(specs) or 'none'}")
    if not specs:
        raise NotAServer(f"{server.url} serves no environment")

    def maker(spec: EnvironmentSpec) -> Callable[[], Target]:
        return lambda: NativeTarget(server, spec)

    return [(name, maker(specs[name])) for name in (envs or specs)]


async def _agentgym(server: ServerUnderTest, envs: Sequence[str]) -> Targets:
    env = envs[0] if envs else await _agentgym_env(server)
    if env is None:
        raise NotAServer(f"{server.url} does not say which of AgentGym's environments it is: give it with --env")
    if env not in WIRES:
        raise NotAServer(f"AgentGym has no environment {env!r}; it has {', '.join(WIRES)}")
    wire = WIRES[env]
    below = server.below(wire.path)
    base = below if not await _has_create(server) and await _has_create(below) else server
    return [(env, lambda: AgentGymTarget(base, wire))]


async def _agentgym_env(server: ServerUnderTest) -> str | None:
    """Name the environment by the end of the URL, because one server has both maze and wordle; else by the banner."""
    banner = await _json(server, "/")
    if not (isinstance(banner, str) or await _has_create(server)):
        return None
    last = server.url.rsplit("/", 1)[-1].lower()
    words = banner.lower() if isinstance(banner, str) else ""
    return last if last in WIRES else next((env for word, env in BANNERS.items() if word in words), None)


async def _has_create(server: ServerUnderTest) -> bool:
    """Return whether there is a path `/create` that takes a method other than GET."""
    return (await server.request("GET", "/create")).status_code == _WRONG_METHOD


async def _json(server: ServerUnderTest, path: str) -> Any:
    """Return the JSON body of a successful GET; None otherwise."""
    try:
        response = await server.http.get(server.url + path, follow_redirects=True)
        if response.status_code in _KEY_WANTED:
            raise NotAServer(f"{server.url} refuses this caller ({response.status_code}): give a key with --api-key")
        return response.json() if response.status_code == _OK else None
    except (ValueError, RecursionError, httpx.TooManyRedirects):
        return None

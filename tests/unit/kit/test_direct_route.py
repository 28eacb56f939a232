"""Direct routes answer as FastAPI's own do, without its machinery where that adds nothing."""

from collections.abc import AsyncIterator
from functools import cache
from typing import Annotated, Any

import fastapi.dependencies.utils
import httpx
import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from gymfleet_contracts.numbers import NUMBER
from gymfleet_kit.app import create_app
from gymfleet_kit.direct_route import DirectRoute, direct_first
from gymfleet_kit.problems import ServiceError
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection

LIMIT = 2_000


class Cup(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Annotated[int, Field(ge=0, lt=2**63), NUMBER]
    name: str = ""


class TeapotFull(ServiceError):
    status = 503
    retry_after_s = 7


async def guest(connection: HTTPConnection) -> str:
    name = connection.headers.get("guest", "nobody")
    if name == "barred":
        raise TeapotFull("not for you")
    return name


GuestDep = Annotated[str, Depends(guest)]


@cache
def tea_app(route_class: type[APIRoute]) -> FastAPI:
    app = create_app("tea", max_body_bytes=LIMIT)
    router = APIRouter(prefix="/tea", route_class=route_class)

    @router.post("/{pot}/cups", response_model=Cup)
    async def pour(pot: str, body: Cup, name: GuestDep) -> Response:
        return Response(f"{pot}|{body.size}|{body.name}|{name}", headers={"x-pot": "1"})

    @router.post("/trays")
    async def tray(
        request: Request, body: Annotated[list[Cup], Body(), Field(min_length=1, max_length=2)], name: GuestDep
    ) -> Response:
        gone = await request.is_disconnected()
        return Response(f"{[cup.size for cup in body]} {name} {gone} {request.method}")

    @router.get("/{pot}")
    async def look(pot: str) -> Response:
        if pot == "full":
            raise TeapotFull("no room")
        if pot == "broken":
            raise RuntimeError("the spout")
        return Response(pot)

    @router.get("/pots/{number}")
    async def numbered(number: int, sugar: int = 0) -> Response:
        return Response(f"{number} {sugar}")

    app.include_router(router)
    direct_first(app)
    return app


def client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


JSON = {"content-type": "application/json"}
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/tea/a%20b/cups", {"json": {"size": 3}, "headers": {"guest": "ann"}}),
    (
        "POST",
        "/tea/a/cups",
        {"content": '{"size": 1.0}', "headers": {"content-type": "application/json; charset=utf-8"}},
    ),
    ("POST", "/tea/a/cups", {"content": '{"size": 1}', "headers": {"content-type": "application/tea+json"}}),
    ("POST", "/tea/a/cups", {"content": '{"size": 1}'.encode("utf-16"), "headers": JSON}),
    ("POST", "/tea/a/cups", {"content": '{"size": 1, "size": 2}', "headers": JSON}),
    ("POST", "/tea/a/cups", {"json": {"size": 1}, "headers": {"guest": "barred"}}),
    ("POST", "/tea/a/cups", {"content": '{"size": 1}', "headers": {"content-type": "text/plain"}}),
    ("POST", "/tea/a/cups", {"content": '{"size": 1}'}),
    ("POST", "/tea/a/cups", {"content": b"", "headers": JSON}),
    ("POST", "/tea/a/cups", {"content": b"{", "headers": JSON}),
    ("POST", "/tea/a/cups", {"content": b"\xff", "headers": JSON}),
    ("POST", "/tea/a/cups", {"content": b"[" * 1_500, "headers": JSON}),
    ("POST", "/tea/a/cups", {"content": b'"' + b"x" * LIMIT + b'"', "headers": JSON}),
    ("POST", "/tea/a/cups", {"json": {"size": "1"}}),
    ("POST", "/tea/a/cups", {"json": {"size": True}}),
    ("POST", "/tea/a/cups", {"json": {"size": -1}}),
    ("POST", "/tea/a/cups", {"json": {"size": 2**63}}),
    ("POST", "/tea/a/cups", {"json": {"size": 1, "sugar": 2}}),
    ("POST", "/tea/a/cups", {"json": [{"size": 1}]}),
    ("POST", "/tea/trays", {"json": [{"size": 1}, {"size": 2}], "headers": {"guest": "ann"}}),
    ("POST", "/tea/trays", {"json": []}),
    ("POST", "/tea/trays", {"json": [{"size": 1}, {"size": 2}, {"size": "x"}]}),
    ("POST", "/tea/trays", {"json": None}),
    ("GET", "/tea/green", {}),
    ("GET", "/tea/full", {}),
    ("GET", "/tea/broken", {}),
    ("GET", "/tea/pots/7?sugar=2", {}),
    ("GET", "/tea/pots/seven", {}),
    ("PUT", "/tea/green", {}),
    ("GET", "/coffee", {}),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]} {call[1]} {str(call[2])[:40]}")
async def test_it_answers_as_any_route_does(call: tuple[str, str, dict[str, Any]]) -> None:
    method, path, request = call
    answers = []
    for route_class in (APIRoute, DirectRoute):
        async with client(tea_app(route_class)) as http:
            response = await http.request(method, path, **request)
        answers.append((response.status_code, response.content, dict(response.headers)))

    assert answers[1] == answers[0]


def test_it_is_described_as_any_route_is() -> None:
    assert tea_app(DirectRoute).openapi()["paths"] == tea_app(APIRoute).openapi()["paths"]


async def test_a_body_in_pieces_is_read_to_its_end() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"si', b'ze"', b": 5}"):
            yield piece

    async with client(tea_app(DirectRoute)) as http:
        response = await http.post("/tea/a/cups", content=pieces(), headers=JSON)

    assert response.text == "a|5||nobody"


async def test_fastapi_is_asked_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = tea_app(DirectRoute)
    asked: list[str] = []
    solve = fastapi.dependencies.utils.solve_dependencies

    async def note(**arguments: Any) -> Any:
        asked.append(arguments["request"].url.path)
        return await solve(**arguments)

    monkeypatch.setattr("fastapi.routing.solve_dependencies", note)
    async with client(app) as http:
        await http.post("/tea/a/cups", json={"size": 1})
        await http.post("/tea/trays", json=[{"size": 1}])
        await http.get("/tea/green")
        assert asked == []

        await http.get("/tea/pots/7")
        await http.post("/tea/b/cups", json={"size": "1"})

    assert asked == ["/tea/pots/7", "/tea/b/cups"]

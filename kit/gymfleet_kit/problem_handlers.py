"""Turn every failure of an app into an RFC 9457 problem. Separate from `problems`, which is also used without HTTP."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from gymfleet_contracts import problems
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE, Problem
from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from gymfleet_kit.problems import ServiceError, internal_problem

log = structlog.get_logger()

_MAX_FAULTS: Final = 16
"""Faults reported per request: otherwise a few bytes per item of a long list would cause a large answer."""
_MAX_POINTER_CHARS: Final = 256


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Render a problem as HTTP."""
    body = problem.model_dump(mode="json", exclude_none=True)
    return JSONResponse(body, status_code=problem.status, headers=headers, media_type=PROBLEM_MEDIA_TYPE)


def _methods(request: Request) -> set[str]:
    """Return the methods that the path allows: each of its routes has only its own (RFC 9110, section 15.5.6)."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is Match.PARTIAL)
    return {method for route in matching for method in getattr(route, "methods", None) or ()}


def install_problem_handlers(app: FastAPI) -> None:
    """Answer every failure of `app` as `application/problem+json`."""

    async def expected(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ServiceError)  # noqa: S101 - registered for this class alone
        return problem_response(error.problem(), error.headers())

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class alone
        found = error.errors()
        fields: list[JsonValue] = [
            {
                "pointer": "/" + "/".join(str(part) for part in item["loc"])[:_MAX_POINTER_CHARS],
                "detail": str(item["msg"]),
            }
            for item in found[:_MAX_FAULTS]
        ]
        told = [f"{f['pointer']}: {f['detail']}" for f in fields if isinstance(f, dict)]
        if len(found) > _MAX_FAULTS:
            told.append(f"and {len(found) - _MAX_FAULTS} more")
        detail = "; ".join(told)
        problem = {"type": problems.VALIDATION, "title": "The request is not valid", "status": 422, "detail": detail}
        return problem_response(Problem.model_validate({**problem, "errors": fields}))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
        title = HTTPStatus(error.status_code).phrase
        problem = Problem(title=title, status=error.status_code, detail=str(error.detail))
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(sorted(_methods(request)))
        return problem_response(problem, headers)

    async def gone(_: Request, __: Exception) -> Response:
        # The caller disconnected in the middle of its body: this is not a bug, and nobody reads the answer.
        return Response(status_code=HTTPStatus.BAD_REQUEST)

    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("request.failed", method=request.method, path=request.url.path, exc_info=error)
        return problem_response(internal_problem())

    app.add_exception_handler(ServiceError, expected)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, bug)

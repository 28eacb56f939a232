"""Every problem type that a session API can answer has a class, and anything else still raises."""

import pytest
from gymfleet_client import errors
from gymfleet_client.errors import ProblemError, parse_problem, raise_for_problem
from gymfleet_client.multiplex import stream_url
from gymfleet_contracts.problems import Problem


@pytest.mark.parametrize(
    ("type_", "error"),
    [
        ("/problems/unknown-environment", errors.UnknownEnvironment),
        ("/problems/unknown-task", errors.UnknownTask),
        ("/problems/unknown-session", errors.UnknownSession),
        ("/problems/session-lost", errors.SessionLost),
        ("/problems/environment-full", errors.EnvironmentFull),
        ("/problems/step-out-of-order", errors.StepOutOfOrder),
        ("/problems/episode-over", errors.EpisodeOver),
        ("/problems/action-too-large", errors.ActionTooLarge),
        ("/problems/environment-failed", errors.EnvironmentFailed),
        ("/problems/step-timeout", errors.StepTimeout),
        ("/problems/fork-unsupported", errors.ForkUnsupported),
        ("/problems/expert-unavailable", errors.ExpertUnavailable),
        ("/problems/actions-unavailable", errors.ActionsUnavailable),
        ("/problems/irreversible", errors.Irreversible),
        ("/problems/invalid-tool-call", errors.InvalidToolCall),
        ("/problems/unavailable", errors.Unavailable),
        ("/problems/upstream-timeout", errors.UpstreamTimeout),
        ("/problems/validation", errors.ValidationFailed),
        ("/problems/unauthorized", errors.Unauthorized),
        ("/problems/forbidden", errors.Forbidden),
        ("/problems/rate-limited", errors.RateLimited),
        ("/problems/quota-exceeded", errors.QuotaExceeded),
        ("/problems/of-the-future", ProblemError),
    ],
)
def test_the_type_picks_the_class(type_: str, error: type[ProblemError]) -> None:
    problem = Problem.model_validate({"type": type_, "title": "t", "status": 400, "detail": "why", "expected": 3})

    with pytest.raises(error, match="t: why") as caught:
        raise_for_problem(problem)

    assert type(caught.value) is error
    assert caught.value.problem.model_extra == {"expected": 3}


@pytest.mark.parametrize("body", [None, [], "text", {}, {"title": "no status"}])
def test_a_body_that_is_no_problem_keeps_its_status(body: object) -> None:
    assert parse_problem(body, 502).status == 502


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h:1", "ws://h:1/v1/stream"),
        ("https://h/", "wss://h/v1/stream"),
        ("http://h/prefix/", "ws://h/prefix/v1/stream"),
    ],
)
def test_the_stream_is_found_under_the_base_url(base: str, url: str) -> None:
    assert stream_url(base) == url


@pytest.mark.parametrize("base", ["h:1", "ftp://h", "/v1", ""])
def test_what_is_no_base_url_is_refused(base: str) -> None:
    with pytest.raises(ValueError, match="not a base URL"):
        stream_url(base)

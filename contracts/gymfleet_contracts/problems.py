"""Stable names of the failures that cross the wire (RFC 9457, `application/problem+json`)."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"

BAD_REQUEST: Final = "/problems/bad-request"
VALIDATION: Final = "/problems/validation"
INTERNAL: Final = "/problems/internal"
UNAVAILABLE: Final = "/problems/unavailable"
UPSTREAM_TIMEOUT: Final = "/problems/upstream-timeout"
PAYLOAD_TOO_LARGE: Final = "/problems/payload-too-large"
UNAUTHORIZED: Final = "/problems/unauthorized"
FORBIDDEN: Final = "/problems/forbidden"
RATE_LIMITED: Final = "/problems/rate-limited"
QUOTA_EXCEEDED: Final = "/problems/quota-exceeded"

UNKNOWN_ENVIRONMENT: Final = "/problems/unknown-environment"
UNKNOWN_TASK: Final = "/problems/unknown-task"
UNKNOWN_SESSION: Final = "/problems/unknown-session"
SESSION_LOST: Final = "/problems/session-lost"
ENVIRONMENT_FULL: Final = "/problems/environment-full"
UNKNOWN_IMAGE: Final = "/problems/unknown-image"
STEP_OUT_OF_ORDER: Final = "/problems/step-out-of-order"
EPISODE_OVER: Final = "/problems/episode-over"
ACTION_TOO_LARGE: Final = "/problems/action-too-large"
ENVIRONMENT_FAILED: Final = "/problems/environment-failed"
STEP_TIMEOUT: Final = "/problems/step-timeout"
SESSION_LIMIT: Final = "/problems/session-limit"
FORK_UNSUPPORTED: Final = "/problems/fork-unsupported"
EXPERT_UNAVAILABLE: Final = "/problems/expert-unavailable"
ACTIONS_UNAVAILABLE: Final = "/problems/actions-unavailable"
IRREVERSIBLE: Final = "/problems/irreversible"
INVALID_TOOL_CALL: Final = "/problems/invalid-tool-call"
NOT_YOUR_TURN: Final = "/problems/not-your-turn"
NO_SEATS: Final = "/problems/no-seats"

UNKNOWN_JOB: Final = "/problems/unknown-job"
UNKNOWN_FORMAT: Final = "/problems/unknown-format"
REFUSED_TEMPLATE: Final = "/problems/refused-template"
UNKNOWN_STRATEGY: Final = "/problems/unknown-strategy"
UNSUITED: Final = "/problems/unsuited"
POLICY_VERSION_CONFLICT: Final = "/problems/policy-version-conflict"
POLICY_UPDATE_FAILED: Final = "/problems/policy-update-failed"
QUEUE_FULL: Final = "/problems/queue-full"

IN_WORK: Final = "in_work"
"""A member of `session-lost`: true if the process or engine died while it worked on this very call, perhaps because of
it."""


class Problem(BaseModel):
    """An RFC 9457 problem. Members beyond these five are the problem's extensions."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str | None = None

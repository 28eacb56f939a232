"""What only the gateway answers; the rest is `gymfleet_kit.session_problems`."""

from gymfleet_contracts import problems
from gymfleet_kit.problems import ServiceError


class Unavailable(ServiceError):
    """No replica can take the call now."""

    type = problems.UNAVAILABLE
    title = "No replica can take the call now"
    status = 503
    retry_after_s = 1


class UpstreamTimeout(ServiceError):
    """The env server did not answer in time."""

    type = problems.UPSTREAM_TIMEOUT
    title = "The env server did not answer in time"
    status = 504


class Unauthorized(ServiceError):
    """No key, or a wrong one."""

    type = problems.BAD_REQUEST
    title = "A valid API key is needed"
    status = 401

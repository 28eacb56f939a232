"""What the gateway answers: its own problems, and those that it only passes on in the env server's words."""

from gymfleet_contracts import problems
from gymfleet_kit.problems import ServiceError


class UnknownEnvironment(ServiceError):
    """No replica serves it."""

    type = problems.UNKNOWN_ENVIRONMENT
    title = "There is no such environment"
    status = 404


class UnknownSession(ServiceError):
    """The id was not made by a gateway with this secret, or the session is closed."""

    type = problems.UNKNOWN_SESSION
    title = "There is no such session"
    status = 404


class SessionLost(ServiceError):
    """The session existed; the process that held it does not any more."""

    type = problems.SESSION_LOST
    title = "The session was lost with its env server"
    status = 410


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


class InvalidBody(ServiceError):
    """A frame that cannot be read, or whose body lacks what routing needs."""

    type = problems.VALIDATION
    title = "The request is not valid"
    status = 422


class Unauthorized(ServiceError):
    """No key, or a wrong one."""

    type = problems.BAD_REQUEST
    title = "A valid API key is needed"
    status = 401


class UnknownTask(ServiceError):
    """Passed on."""

    type = problems.UNKNOWN_TASK
    title = "There is no such task"
    status = 404


class EnvironmentFull(ServiceError):
    """Passed on, when every replica answers it."""

    type = problems.ENVIRONMENT_FULL
    title = "All slots of this environment are taken"
    status = 503


class StepOutOfOrder(ServiceError):
    """Passed on."""

    type = problems.STEP_OUT_OF_ORDER
    title = "The step's index is not the next one"
    status = 409


class EpisodeOver(ServiceError):
    """Passed on."""

    type = problems.EPISODE_OVER
    title = "The episode is over"
    status = 409


class ActionTooLarge(ServiceError):
    """Passed on."""

    type = problems.ACTION_TOO_LARGE
    title = "The action is too large"
    status = 413


class EnvironmentFailed(ServiceError):
    """Passed on."""

    type = problems.ENVIRONMENT_FAILED
    title = "The environment failed"
    status = 500


class StepTimeout(ServiceError):
    """Passed on."""

    type = problems.STEP_TIMEOUT
    title = "The environment did not answer in time"
    status = 504


class ForkUnsupported(ServiceError):
    """Passed on."""

    type = problems.FORK_UNSUPPORTED
    title = "This environment cannot be forked"
    status = 409


class ExpertUnavailable(ServiceError):
    """Passed on."""

    type = problems.EXPERT_UNAVAILABLE
    title = "There is no expert move"
    status = 409

"""Failures of sessions, for env servers and the gateway: one class per reaction of the caller."""

from gymfleet_contracts import problems

from gymfleet_kit.problems import ServiceError, TryLater


class UnknownEnvironment(ServiceError):
    """Neither this server nor a replica behind it hosts the environment."""

    type = problems.UNKNOWN_ENVIRONMENT
    title = "There is no such environment here"
    status = 404


class UnknownTask(ServiceError):
    """No such split, level, index or id."""

    type = problems.UNKNOWN_TASK
    title = "There is no such task"
    status = 404


class UnknownSession(ServiceError):
    """The session was never opened here or is closed, its lease ran out, or the id is forged."""

    type = problems.UNKNOWN_SESSION
    title = "There is no such session"
    status = 404


class SessionLost(ServiceError):
    """The session's process died. A deterministic episode can be replayed elsewhere; nothing else brings it back."""

    type = problems.SESSION_LOST
    title = "The session was lost with its process"
    status = 410


class EnvironmentFull(TryLater):
    """No free slot: wait, or go to another replica."""

    type = problems.ENVIRONMENT_FULL
    title = "All slots of this server are taken"


class StepOutOfOrder(ServiceError):
    """`expected` is the index that the session waits for. Also raised for the last index with another action."""

    type = problems.STEP_OUT_OF_ORDER
    title = "The step's index is not the next one"
    status = 409


class EpisodeOver(ServiceError):
    """The episode has ended; only its last step can be requested again."""

    type = problems.EPISODE_OVER
    title = "The episode is over"
    status = 409


class ActionTooLarge(ServiceError):
    """The action was not given to the environment; the step can be sent again with a shorter one."""

    type = problems.ACTION_TOO_LARGE
    title = "The action is too large"
    status = 413


class EnvironmentFailed(ServiceError):
    """The environment raised. The session is closed; the traceback is in the log."""

    type = problems.ENVIRONMENT_FAILED
    title = "The environment failed"
    status = 500


class StepTimeout(ServiceError):
    """The environment did not answer in time; its process was killed."""

    type = problems.STEP_TIMEOUT
    title = "The environment did not answer in time"
    status = 504


class SessionLimit(ServiceError):
    """The session exceeded its processor time or age and was closed. A replay would exceed it again, so give it up."""

    type = problems.SESSION_LIMIT
    title = "The session exceeded its limit"
    status = 410


class ForkUnsupported(ServiceError):
    """The environment can neither copy nor replay its state."""

    type = problems.FORK_UNSUPPORTED
    title = "This environment cannot be forked"
    status = 409


class ExpertUnavailable(ServiceError):
    """There is no expert, or none for this split, or it has no move here."""

    type = problems.EXPERT_UNAVAILABLE
    title = "There is no expert move"
    status = 409


class ActionsUnavailable(ServiceError):
    """The environment cannot list the possible actions, or not in this state."""

    type = problems.ACTIONS_UNAVAILABLE
    title = "There is no list of the possible actions"
    status = 409


class UnknownImage(ServiceError):
    """The session's last observation shows no such image; earlier ones are gone."""

    type = problems.UNKNOWN_IMAGE
    title = "There is no such image"
    status = 404


class Irreversible(ServiceError):
    """The session has taken an irreversible action: a replay would take it a second time."""

    type = problems.IRREVERSIBLE
    title = "An action of the session cannot be taken back"
    status = 409


class InvalidToolCall(ServiceError):
    """There is no such tool, or its arguments do not fit; the detail may be shown to the model."""

    type = problems.INVALID_TOOL_CALL
    title = "The tool call is not valid"
    status = 422


class InvalidRequest(ServiceError):
    """The body does not fit the call."""

    type = problems.VALIDATION
    title = "The request is not valid"
    status = 422

"""Errors that callers of the rollout service can branch on."""

from gymfleet_contracts import problems
from gymfleet_kit.problems import ServiceError, TryLater


class PolicyVersionConflict(ServiceError):
    """The version is not newer than the live one, or another one is being decided on."""

    type = problems.POLICY_VERSION_CONFLICT
    title = "The policy version does not fit the present state"
    status = 409


class PolicyUpdateFailed(ServiceError):
    """The new weights could not be loaded or probed; the last live version is back."""

    type = problems.POLICY_UPDATE_FAILED
    title = "The policy could not be updated"
    status = 422


class CannotSleep(ServiceError):
    """The engines stay awake: they were not started for sleeping, or one of them failed to."""

    type = problems.POLICY_UPDATE_FAILED
    title = "The engines cannot sleep"
    status = 422


class PolicyUnavailable(TryLater):
    """The engine is starting, or gone: nothing can be generated."""

    type = problems.UNAVAILABLE
    title = "The policy cannot be sampled from"
    retry_after_s = 5


class WrongPort(ServiceError):
    """The route is served on another port."""

    type = problems.FORBIDDEN
    title = "The policy is replaced over the control port alone"
    status = 403


class UnknownJob(ServiceError):
    """The job was never submitted to this process, or was forgotten since."""

    type = problems.UNKNOWN_JOB
    title = "There is no such job"
    status = 404


class UnknownFormat(ServiceError):
    """The reply format does not exist, was not given to this service, refuses these options, or cannot be made."""

    type = problems.UNKNOWN_FORMAT
    title = "There is no such reply format"
    status = 422


class RefusedTemplate(ServiceError):
    """The chat template lacks what a group wants: a role, functions, thinking on or off."""

    type = problems.REFUSED_TEMPLATE
    title = "The chat template cannot be used so"
    status = 422


class UnknownStrategy(ServiceError):
    """The strategy does not exist, was not given to this service, or does not take these options."""

    type = problems.UNKNOWN_STRATEGY
    title = "There is no such strategy"
    status = 422


class Unsuited(ServiceError):
    """The environment lacks what the strategy needs, or what the policy is to be shown."""

    type = problems.UNSUITED
    title = "The environment cannot be played in this way"
    status = 422


class GatewayFailed(TryLater):
    """The gateway did not describe the environment."""

    type = problems.UNAVAILABLE
    title = "The environment could not be asked about"
    retry_after_s = 5


class StrategyError(Exception):
    """A strategy made a call that makes no sense, or failed by its own fault: another attempt does not help."""


class EvaluationFailed(Exception):
    """A node has no value: the reward service does not answer, or one of its components failed."""


class QueueFull(TryLater):
    """More episodes are requested over HTTP than are kept at once."""

    type = problems.QUEUE_FULL
    title = "Too many episodes are waiting"
    retry_after_s = 10

"""Expected failures of the reward service."""

from gymfleet_contracts import problems
from gymfleet_kit.problems import ServiceError


class Unscorable(ServiceError):
    """A component is unknown, its options are wrong, or a part of a group is missing."""

    type = problems.VALIDATION
    title = "The request is not valid"
    status = 422

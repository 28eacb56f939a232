"""Settings of the textworld environment."""

from gymfleet_envs.environment import Options


class TextWorldOptions(Options):
    """What observations show."""

    show_actions: bool = False
    """Whether observations end with the commands that can be taken, as `AVAILABLE ACTIONS: a,b`."""

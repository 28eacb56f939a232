"""Settings of the textworld environment."""

from gymfleet_envs.environment import Options


class TextWorldOptions(Options):
    """The content of observations."""

    show_actions: bool = False
    """Whether observations end with the possible commands, as `AVAILABLE ACTIONS: a,b`."""

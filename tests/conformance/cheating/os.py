"""What an agent would do in os that wants the reward and not the task."""

CHEATS = ()

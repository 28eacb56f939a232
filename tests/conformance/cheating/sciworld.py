"""What an agent would do in sciworld that wants the reward and not the task."""

CHEATS = ()

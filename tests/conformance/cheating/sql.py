"""What an agent would do in sql that wants the reward and not the task."""

CHEATS = ()

"""What an agent would do in maze that wants the reward and not the task."""

CHEATS = ()

"""What an agent would do in db that wants the reward and not the task."""

CHEATS = ()

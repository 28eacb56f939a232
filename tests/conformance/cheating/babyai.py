"""What an agent would do in babyai that wants the reward and not the task."""

CHEATS = ()

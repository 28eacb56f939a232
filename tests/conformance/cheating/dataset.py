"""What an agent would do in dataset that wants the reward and not the task."""

CHEATS = ()

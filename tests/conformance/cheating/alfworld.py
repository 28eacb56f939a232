"""What an agent would do in alfworld that wants the reward and not the task."""

CHEATS = ()

"""What an agent would do in wordle that wants the reward and not the task."""

CHEATS = ()

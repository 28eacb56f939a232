"""What an agent would do in webshop that wants the reward and not the task."""

CHEATS = ()

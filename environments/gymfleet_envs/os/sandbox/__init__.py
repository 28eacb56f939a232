"""The sandbox that runs an episode's commands: no code of the task or the agent runs outside it."""

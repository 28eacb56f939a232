"""Where an episode's commands run: nothing of the task and nothing of the agent runs outside."""

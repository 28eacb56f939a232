"""AgentGym's todo: a Todoist account in memory."""

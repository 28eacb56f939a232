"""The front for AgentGym's own clients."""

"""What AgentGym's five tool environments share: the form of a call, the wording, published tasks and responses."""

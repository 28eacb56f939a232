"""Parts that AgentGym's five tool environments share: form of a call, wording, published tasks and responses."""

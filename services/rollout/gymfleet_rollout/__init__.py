"""The rollout service: plays episodes with a policy served by vLLM."""

"""The phases of a run, in order: warm start, measurement, reinforcement learning, measurement."""

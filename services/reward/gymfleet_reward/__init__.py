"""The reward service: scores trajectories and allots the reward to tokens."""

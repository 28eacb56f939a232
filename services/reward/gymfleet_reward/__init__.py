"""The reward service: computes the rewards of trajectories and allocates them to tokens."""

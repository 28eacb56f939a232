"""HTTP surface of the reward service."""

"""Annotating: stored episodes are scored by the reward service, and kept with their rewards."""

"""Annotating: the reward service scores stored episodes, which are kept with their rewards."""

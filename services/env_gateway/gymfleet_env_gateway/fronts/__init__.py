"""Fronts for other people's clients."""

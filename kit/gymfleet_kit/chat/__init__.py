"""Conversations as the tokens of a model."""

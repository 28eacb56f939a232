"""Reward models: networks that give an episode, or each of its turns, a number."""

"""Reasoning Gym's procedural data sets: one question, one answer."""

"""Lateral thinking puzzles, as in AgentBench."""

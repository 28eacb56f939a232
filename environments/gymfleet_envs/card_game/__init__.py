"""Aquawar, the card game of AgentBench."""

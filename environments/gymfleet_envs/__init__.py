"""Environments as HTTP services: the runtime, and one folder per environment."""

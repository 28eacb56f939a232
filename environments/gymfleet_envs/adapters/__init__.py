"""Environments that others wrote or serve, as environments of gymfleet."""

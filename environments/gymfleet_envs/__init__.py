"""Environments: the base class that an author writes, and one folder for each that comes with gymfleet."""

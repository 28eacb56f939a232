"""The `gymfleet` command."""

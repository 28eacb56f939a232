"""The Python SDK, and the `gymfleet` command."""

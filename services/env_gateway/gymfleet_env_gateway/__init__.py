"""The gateway: one front for every environment server."""

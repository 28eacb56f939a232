"""The front for OpenEnv's own clients."""

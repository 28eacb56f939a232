"""OpenEnv's promises, as its own clients rely on them."""

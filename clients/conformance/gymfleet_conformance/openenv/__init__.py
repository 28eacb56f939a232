"""OpenEnv's promises, as far as its own clients rely on them."""

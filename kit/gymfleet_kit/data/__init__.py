"""Training data: reading, converting, filtering and augmenting it."""

"""A run from its recipe to its summary: what is requested, collected, checkpointed and reported."""

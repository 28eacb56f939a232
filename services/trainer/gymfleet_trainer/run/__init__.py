"""A run from its recipe to its summary: what is asked for, collected, checkpointed and reported."""

"""The models that are trained: packed batches, attention, optimiser."""

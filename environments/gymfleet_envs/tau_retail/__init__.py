"""tau-bench: the shop."""

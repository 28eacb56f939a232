"""tau-bench: the airline."""

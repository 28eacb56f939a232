"""Mathematical answers, compared in separate processes."""

"""Mathematical answers, compared in processes of their own."""

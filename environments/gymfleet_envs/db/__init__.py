"""DBBench: answer questions about a table, or change it, with SQL."""

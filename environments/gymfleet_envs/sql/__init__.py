"""SQL: answer a question about a database with one read-only query."""

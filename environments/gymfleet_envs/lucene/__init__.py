"""Full-text search like Lucene's, for environments that search."""

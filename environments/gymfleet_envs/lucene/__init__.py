"""Full-text search as Lucene's, for environments that search."""

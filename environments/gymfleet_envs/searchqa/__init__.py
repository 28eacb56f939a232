"""Questions that are answered by searching passages."""

"""The processes that play sessions, and how the server keeps them running."""

"""Collecting episodes: an agent behind a chat endpoint plays, and its episodes are kept in a file."""

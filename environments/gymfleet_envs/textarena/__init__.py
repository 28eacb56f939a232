"""TextArena's games: single-player ones as levels, and some for two players."""

"""SQLite for statements that nobody vetted: guarded connections, bounded functions, LIKE by other databases' rules."""

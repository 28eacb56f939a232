"""SQLite for statements that nobody vetted: guarded connections, bounded functions, LIKE as other databases read it."""

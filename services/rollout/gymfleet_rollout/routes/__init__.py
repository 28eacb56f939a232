"""HTTP surface: parsing and status codes only."""

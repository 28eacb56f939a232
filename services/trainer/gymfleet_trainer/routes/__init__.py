"""HTTP surface of the trainer."""

"""The scorers that come with gymfleet, one per module and named after it."""

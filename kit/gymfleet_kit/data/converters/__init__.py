"""The converters that come with gymfleet, one per module."""

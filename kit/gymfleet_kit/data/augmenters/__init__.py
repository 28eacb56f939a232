"""The augmenters that come with gymfleet, one per module."""

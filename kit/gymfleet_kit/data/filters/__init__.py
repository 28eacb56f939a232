"""The filters that come with gymfleet, one per module."""

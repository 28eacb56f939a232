"""The algorithms that come with gymfleet, one file each."""

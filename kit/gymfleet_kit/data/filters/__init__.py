"""The filters that come with gymfleet, a module each."""

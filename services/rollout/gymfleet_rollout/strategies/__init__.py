"""The strategies that come with gymfleet, one module each."""

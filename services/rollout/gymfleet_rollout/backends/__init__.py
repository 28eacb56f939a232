"""The inference backends that come with gymfleet, one module each."""

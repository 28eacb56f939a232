"""The converters that come with gymfleet, a module each."""

"""The augmenters that come with gymfleet, a module each."""

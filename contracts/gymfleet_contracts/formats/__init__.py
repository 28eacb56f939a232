"""The reply formats that come with gymfleet, each a module under its name."""

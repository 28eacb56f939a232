"""The reply formats that come with gymfleet, each in the module of its name."""

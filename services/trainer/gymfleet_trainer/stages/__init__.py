"""The stages that come with gymfleet, a module each."""

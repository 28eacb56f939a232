"""The stages that come with gymfleet, one module each."""

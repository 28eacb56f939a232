"""The tools that come with gymfleet, one a module, by the name of the module."""

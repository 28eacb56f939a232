"""Components that come with gymfleet: each is a module, whose name is the component's."""

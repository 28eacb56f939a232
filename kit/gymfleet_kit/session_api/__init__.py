"""The session API, written once for env server and gateway: REST routes and the stream, over one kind of call."""

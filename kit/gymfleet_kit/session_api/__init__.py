"""The session API, shared by env server and gateway: REST routes and the stream, over one kind of call."""

"""The session API's HTTP and WebSocket surface."""

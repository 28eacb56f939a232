"""The HTTP and WebSocket surface."""

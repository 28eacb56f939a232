"""The HTTP routes, which only parse requests and set status codes."""

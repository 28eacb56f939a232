"""Code that every service needs and none should duplicate."""

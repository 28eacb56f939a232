"""The front for clients of the Model Context Protocol."""

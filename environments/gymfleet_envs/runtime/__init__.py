"""The environment runtime: the base class that a researcher writes, and the server that runs it."""

"""The computations of an update: advantages, losses, and the updaters that apply them."""

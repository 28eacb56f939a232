"""What an update computes: advantages, losses, and the updaters that apply them."""

"""The base of every algorithm: the update engine, losses, advantages, and the learner that holds them."""

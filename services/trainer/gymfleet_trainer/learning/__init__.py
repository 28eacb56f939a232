"""What every algorithm stands on: the engine of an update, losses, advantages, and the learner that holds them."""

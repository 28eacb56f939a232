"""The way of new weights to the rollout replicas, and the proof that they arrived."""

"""The trainer: drives a run, updates the policy and publishes its weights."""

"""Training with several processes: ranks, sharding, and Ray's workers."""

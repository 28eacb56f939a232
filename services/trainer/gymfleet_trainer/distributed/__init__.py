"""Training by several processes: ranks, sharding, and Ray's workers."""

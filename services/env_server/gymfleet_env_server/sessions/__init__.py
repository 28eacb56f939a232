"""One shard's sessions: episodes, leases, ids and limits."""

"""Redis Streams with at-least-once delivery. The contract is *duplicates possible*.

A message is acknowledged after its handler succeeded, claimed by another
consumer after the lease of a dead one, and moved to `STREAM:dead` after
`max_attempts` or when it cannot be read. Handlers are idempotent by the
record's own id.
"""

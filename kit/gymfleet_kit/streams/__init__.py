"""Redis Streams with at-least-once delivery. The contract is *duplicates possible*.

A message is acknowledged after its handler has succeeded, claimed by another
consumer when the lease of a dead one has run out, and moved to `STREAM:dead`
after `max_attempts` or when it cannot be read. Handlers are idempotent by the
record's own id. Acknowledged entries leave the stream, so its length is the
backlog, and producers wait while it is too long.
"""

from gymfleet_kit.streams.connection import OUTAGE, Patience, RedisClient, connect, disconnect
from gymfleet_kit.streams.consumer import StreamConsumer
from gymfleet_kit.streams.delivery import Delivery, Handler
from gymfleet_kit.streams.producer import StreamFull, StreamProducer
from gymfleet_kit.streams.watch import RedisWatch

__all__ = [
    "OUTAGE",
    "Delivery",
    "Handler",
    "Patience",
    "RedisClient",
    "RedisWatch",
    "StreamConsumer",
    "StreamFull",
    "StreamProducer",
    "connect",
    "disconnect",
]

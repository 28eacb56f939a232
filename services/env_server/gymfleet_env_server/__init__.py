"""The env server: hosts environments as sessions over HTTP, on shards that are processes of their own."""

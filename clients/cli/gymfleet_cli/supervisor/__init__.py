"""Runs gymfleet's services as local processes: start, watch, restart, stop, leave nothing behind."""

"""The `gymfleet` command: the local fleet, training runs, reports."""

"""The data that crosses the wire between gymfleet's services. No I/O."""

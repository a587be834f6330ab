"""The aggregator: coordinator, journal and server."""

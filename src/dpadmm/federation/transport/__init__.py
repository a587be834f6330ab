"""NATS: the built-in broker, and connections to any broker."""

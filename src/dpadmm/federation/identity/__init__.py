"""Keys and certificates: the authority of an aggregator, and how sites join it."""

"""Studies across organisations: one aggregator, many sites, and a broker that carries messages."""

"""Studies across organisations: one server, several sites, and a broker that carries messages."""

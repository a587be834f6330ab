"""The server: coordinator, journal, and the process that runs a study."""

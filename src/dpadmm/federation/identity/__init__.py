"""Keys and certificates: the server's authority, approved sites, and joining."""

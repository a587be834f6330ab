"""A site: an owner's table, limits and ledger, as its ``site.toml`` says."""

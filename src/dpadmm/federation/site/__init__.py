"""A site: the decisions of its owner, the responder, and the process that runs it."""

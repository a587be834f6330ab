"""The server's page for the tests of it."""

from page_visits import page, run

__all__ = ["page", "run"]

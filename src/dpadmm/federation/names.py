"""Names of sites, users of the broker, and the subjects that each user may use."""

from __future__ import annotations

import re

from dpadmm.errors import StudyError

AGGREGATOR = "aggregator"
AGGREGATOR_USER = "aggregator@dpadmm"
_NAME = re.compile("[a-z0-9][a-z0-9-]{0,39}")


def check_name(name: str) -> str:
    """A site's name as it is, or one sentence why it is none.

    Examples
    --------
    >>> check_name("north-hospital-2")
    'north-hospital-2'
    """
    if not _NAME.fullmatch(name):
        raise StudyError(
            f"{name[:60]!r} is no name of a site: use 1 to 40 small letters a-z, digits and hyphens, "
            "and begin with a letter or digit"
        )
    if name == AGGREGATOR:
        raise StudyError(f"no site may be called {AGGREGATOR}: choose another name")
    return name


def user_of(name: str, serial: str) -> str:
    """``NAME.SERIALHEX@dpadmm``: so a revoked certificate stays revoked when its site gets a new one."""
    return f"{name}.{serial}@dpadmm"


def may_publish(name: str) -> str:
    """The only subjects that a user speaks on, of any study."""
    return "dpadmm.*.down" if name == AGGREGATOR else f"dpadmm.*.up.{name}"


def may_hear(name: str) -> str:
    """The only subjects that a user hears, of any study."""
    return "dpadmm.*.up.*" if name == AGGREGATOR else "dpadmm.*.down"

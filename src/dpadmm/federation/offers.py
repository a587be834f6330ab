"""Offers of sites to join a study with secure aggregation, and the roster of a study.

An offer contains the public half of a key that the site made for the draft of a study. The study is the draft with a
roster of all offers. The server could replace keys, so owners compare one number, the study's hash. Each site verifies
that the study contains its own key.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpadmm.errors import StudyError
from dpadmm.federation.identity.private_files import read_fields
from dpadmm.federation.protocol import check_name
from dpadmm.studies.reading import read_study, study_from

FORMAT = "dpadmm-offer/1"
_HEX = re.compile("[0-9a-f]{64}")


class Offer(NamedTuple):
    """A site's name, its public key and the hash of the draft, both in hexadecimal digits."""

    name: str
    key: str
    draft: str

    def as_bytes(self) -> bytes:
        return (json.dumps({"format": FORMAT, **self._asdict()}, indent=2) + "\n").encode()


def read_offer(path: Path) -> Offer:
    """Read an offer."""
    what = "an offer from dpadmm site accept"
    table = read_fields(path, format=FORMAT, what=what, fields=Offer._fields)
    name, key, draft = (str(table[field]) for field in Offer._fields)
    if not _HEX.fullmatch(key) or not _HEX.fullmatch(draft):
        raise StudyError(f"{path}: not {what}: key and draft must be 64 hexadecimal digits")
    return Offer(check_name(name), key, draft)


def with_roster(draft: Path, offers: Sequence[Path]) -> str:
    """Return the text of a study: the draft's file with a roster of these offers, sorted by name."""
    study, keys = read_study(draft), dict[str, str]()
    study.check_concrete()
    if study.training.aggregation != "secure":
        raise StudyError(f'{draft}: a roster is for studies with aggregation = "secure" in [privacy]')
    if study.roster:
        raise StudyError(f"{draft}: it has a roster already; use the draft for which the offers were made")
    for path in offers:
        offer = read_offer(path)
        if offer.draft != study.hash:
            text = "was made for another draft: send the site this one, and ask for a new offer"
            raise StudyError(f"{path}: the offer of {offer.name} {text}")
        if offer.name in keys:
            raise StudyError(f"{path}: there are two offers of {offer.name}; use the one that its owner confirms")
        keys[offer.name] = offer.key
    entries = [f'[[roster]]\nname = "{name}"\nkey = "{key}"\n' for name, key in sorted(keys.items())]
    text = "\n".join([draft.read_text(encoding="utf-8").rstrip() + "\n", *entries])
    study_from(tomllib.loads(text), str(draft), draft.parent)
    return text

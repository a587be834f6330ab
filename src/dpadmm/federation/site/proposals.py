"""Studies that the server proposed to a site: stored for the owner, found by name, and answered with the decision.

A proposed study is a file in ``proposals`` until its owner decides. Its name is its hash, so a study that was changed
after its proposal is another study. A site stores only studies that it asked for, and a limited number of them.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.federation.health import now_text
from dpadmm.federation.identity.private_files import check_unchanged_by_others
from dpadmm.federation.offers import Offer, read_offer
from dpadmm.federation.protocol import NO_DIGEST, ProposalReply, ReplyCode
from dpadmm.federation.site.decisions import Decision, decisions
from dpadmm.files.atomic import atomic_file
from dpadmm.studies.reading import read_study, study_from
from dpadmm.studies.study import Study

FORMAT = "dpadmm-proposal/1"
MAX_PROPOSALS, MAX_BYTES = 100, 2**26
"""Limits of a site's undecided proposals: their number, and their total size."""

MIN_HASH = 6
"""Characters of a hash that identify a study in a command."""


class Proposal(NamedTuple):
    """A proposed study without a decision, and when it arrived."""

    at: str
    study: Study


def store_proposal(folder: Path, hash: str, text: bytes) -> Study:
    """Store a study that was proposed under this hash; raise ``DPADMMError`` if it is invalid or another study."""
    try:
        study = study_from(json.loads(text.decode("utf-8")), "the proposed study")
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as problem:
        if isinstance(problem, DPADMMError):
            raise
        raise DataError("the proposed study is damaged") from None
    if study.hash != hash:
        raise DataError(f"the proposed study is another one ({study.hash[:12]}): it was changed after its proposal")
    directory = folder / "proposals"
    existing = [path.stat().st_size for path in directory.glob("*.json")]
    if len(existing) >= MAX_PROPOSALS or sum(existing) + len(text) > MAX_BYTES:
        raise DataError(f"there are {len(existing)} undecided proposals: decline some (dpadmm site studies)")
    directory.mkdir(mode=0o700, exist_ok=True)
    table = {"format": FORMAT, "at": now_text(), "study": study.as_json()}
    with atomic_file(directory / f"{hash}.json") as out:
        out.write(json.dumps(table, indent=2).encode() + b"\n")
    return study


def proposals(folder: Path) -> list[Proposal]:
    """Return the proposed studies without a decision, oldest first."""
    found, decided = [], {path.name for path in (folder / "studies").glob("*.json")}
    for path in sorted((folder / "proposals").glob("*.json")):
        if path.name in decided:
            continue
        for protected in (folder, path.parent, path):
            check_unchanged_by_others(protected)
        found.append(_proposal(path))
    return sorted(found, key=lambda proposal: (proposal.at, proposal.study.hash))


def _proposal(path: Path) -> Proposal:
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT:
            raise ValueError("unknown format")
        study = study_from(table["study"], str(path))
        if f"{study.hash}.json" != path.name:
            raise ValueError("the file name is not the hash of the study")
        return Proposal(str(table["at"]), study)
    except DPADMMError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        raise DataError(f"{path}: not a proposed study ({problem}); delete the file") from None


def clear_decided(folder: Path, accepted: Study | None = None) -> None:
    """Delete the files of proposals that have a decision, which contains the study.

    The draft of an accepted study with secure aggregation, and the offer for it, are deleted too.
    """
    done = {path.stem for path in (folder / "studies").glob("*.json")}
    if accepted is not None:
        keys = {entry.key for entry in accepted.roster}
        for draft, key in offers(folder).items():
            if key in keys:
                withdraw_offer(folder, draft)
                done.add(draft)
    for path in (folder / "proposals").glob("*.json"):
        if path.stem in done:
            with suppress(OSError):
                path.unlink()


def write_offer(folder: Path, offer: Offer) -> None:
    """Store the offer for a draft. The site's process sends it to the server."""
    directory = folder / "offers"
    directory.mkdir(mode=0o700, exist_ok=True)
    with atomic_file(directory / f"{offer.draft}.json") as out:
        out.write(offer.as_bytes())


def withdraw_offer(folder: Path, draft: str) -> None:
    """Delete the offer for a draft, if there is one."""
    (folder / "offers" / f"{draft}.json").unlink(missing_ok=True)


def offers(folder: Path) -> dict[str, str]:
    """Return the offered keys of a site, by the hash of the draft."""
    found = {}
    for path in (folder / "offers").glob("*.json"):
        with suppress(DPADMMError):
            offer = read_offer(path)
            found[offer.draft] = offer.key
    return found


def replies(folder: Path, decided: dict[str, Decision]) -> dict[str, ProposalReply]:
    """Return the site's reply for each study that it has, by hash."""
    found = {
        path.stem: ProposalReply(path.stem, ReplyCode.RECEIVED)
        for path in (folder / "proposals").glob("*.json")
        if len(path.stem) == len(NO_DIGEST)
    }
    for hash, decision in decided.items():
        code = ReplyCode.ACCEPTED if decision.kind == "accepted" else ReplyCode.DECLINED
        found[hash] = ProposalReply(hash, code)
    for draft, key in offers(folder).items():  # an offer after a decision replaces it; declining deletes the offer
        found[draft] = ProposalReply(draft, ReplyCode.OFFERED, key)
    return found


def find_study(folder: Path, text: str) -> Study:
    """Return a study by its file, its name or the beginning of its hash.

    Undecided proposals come first, so that the name of a changed study means the new one.
    """
    if text.endswith(".toml") or "/" in text:
        return read_study(Path(text))
    recorded: dict[str, Study] = {decision.study.hash: decision.study for decision in decisions(folder)}
    offered = offers(folder)
    pending = {proposal.study.hash: proposal.study for proposal in proposals(folder)}
    undecided = {hash: study for hash, study in pending.items() if hash not in offered}
    for group in (undecided, pending | recorded):
        matches = [
            study
            for hash, study in group.items()
            if study.name == text or (len(text) >= MIN_HASH and hash.startswith(text.lower()))
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            choices = ", ".join(sorted(study.hash[:12] for study in matches))
            raise StudyError(f"{folder}: there are {len(matches)} studies {text!r}; give one of the hashes {choices}")
    names = ", ".join(dict.fromkeys(repr(study.name) for study in (pending | recorded).values()))
    known = f"this site has {names}" if names else "no study was proposed to this site yet"
    raise StudyError(f"{folder}: there is no study with the name or hash {text!r}, and no such file; {known}")

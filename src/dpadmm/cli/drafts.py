"""Drafts of studies: what ``dpadmm study new`` makes of a table or a dictionary, and says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpadmm._base.errors import StudyError
from dpadmm._base.suggestions import listed, unknown_name

if TYPE_CHECKING:
    from dpadmm.study.drafting import Draft


def drafted(from_table: Path | None, dictionary: Path | None, label: str | None) -> Draft:
    """A draft from a table or a dictionary, whichever is given."""
    from dpadmm.data.reader import column_names
    from dpadmm.study.drafting import draft_from_dictionary, draft_from_table

    if from_table is not None and dictionary is not None:
        raise StudyError("give either --from TABLE or --from-dictionary DICT.csv, not both")
    if dictionary is not None:
        return draft_from_dictionary(dictionary, label)
    assert from_table is not None
    if label is None:
        names = listed(column_names(from_table))
        raise StudyError(f"say which column is predicted: --label COLUMN; {from_table} has {names}")
    return draft_from_table(from_table, label)


def without(draft: Draft, by: str | None) -> Draft:
    """The draft without the column that says whose a row is."""
    from dpadmm.study.drafting.draft import DraftColumn

    if by is None:
        return draft
    names = [each.name for each in draft.columns]
    if by not in names:
        raise unknown_name("column", by, names, draft.source)
    kept = (DraftColumn(by, None, "says whose a row is") if c.name == by else c for c in draft.columns)
    return replace(draft, columns=tuple(kept))


def draft_in_words(draft: Draft) -> list[str]:
    """What was drafted, what was left out, and what is to be done."""
    used = sum(each.about is not None for each in draft.columns)
    out = [each for each in draft.columns if each.about is None]
    columns = "1 column" if used == 1 else f"{used} columns"
    said = [f"{columns} and the label {draft.label['column']!r} from {draft.source}."]
    if out:
        said.append(f"Left out: {'; '.join(f'{each.name!r} ({each.comment})' for each in out[:8])}"
                    f"{f' and {len(out) - 8} more' if len(out) > 8 else ''}.")  # fmt: skip
    said += [f"Column {each.name!r} {each.comment}" for each in draft.columns if each.is_doubted]
    if draft.confirm:
        said.append(
            "Its bounds, values and classes were read off the table, so each waits for you: open the file, "
            "correct what is not public knowledge, and change public = false to true. What is left to do:"
        )
    else:
        said.append("Choose the model and the privacy in [training]; then:")
    return said

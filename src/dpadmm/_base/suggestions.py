"""The name that somebody meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near_name(name: object, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one stands for, or None: a wrong guess is worse than the list.

    Case, spaces and dashes are no difference. Names that begin or end with what was written count, from
    three letters on.

    Examples
    --------
    >>> known = ["epsilon", "noise_multiplier", "n_rounds", "age"]
    >>> [near_name(name, known) for name in ("Epsilonn", "noise", "rounds", "aeg", "seed", "image")]
    ['epsilon', 'noise_multiplier', 'n_rounds', 'age', None, None]
    """
    letters: dict[str, str] = {}
    for each in known:
        letters.setdefault(_letters(each), each)
    written = _letters(str(name))
    # In short names one letter of three may be wrong
    if close := get_close_matches(written, letters, n=1, cutoff=0.76):
        return letters[close[0]]
    if len(written) < 3:
        return None
    if len(written) < 6 and (close := get_close_matches(written, letters, n=3, cutoff=0.66)):
        alike = [each for each in close if abs(len(each) - len(written)) <= 1]
        if alike:
            return letters[alike[0]]
    return next(
        (letters[each] for each in letters if each.startswith(written) or each.endswith(written)), None
    )


def _letters(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())

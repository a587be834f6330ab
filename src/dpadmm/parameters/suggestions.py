"""Suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

from dpadmm.errors import StudyError

SAME = (("data_norm", "row_norm"), ("max_iter", "n_rounds"), ("random_state", "seed"))
"""Names of the same setting in estimators (as in scikit-learn) and in studies."""


def near_name(name: object, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None if no name is similar enough: a wrong guess is worse than a list.

    Case, spaces and dashes are ignored. From three letters on, names that begin or end with ``name`` are similar.

    Examples
    --------
    >>> known = ["epsilon", "noise_multiplier", "n_rounds", "age"]
    >>> [near_name(name, known) for name in ("Epsilonn", "noise", "rounds", "aeg", "seed", "image")]
    ['epsilon', 'noise_multiplier', 'n_rounds', 'age', None, None]
    """
    letters: dict[str, str] = {}
    for known_name in known:
        letters.setdefault(_letters(known_name), known_name)
    written = _letters(str(name))
    for one, other in (*SAME, *(pair[::-1] for pair in SAME)):
        if written == _letters(one) and _letters(other) in letters:
            return letters[_letters(other)]
    # In short names one letter of three may be wrong
    if close := get_close_matches(written, letters, n=1, cutoff=0.76):
        return letters[close[0]]
    if len(written) < 3:
        return None
    if len(written) < 6 and (close := get_close_matches(written, letters, n=3, cutoff=0.66)):
        alike = [each for each in close if abs(len(each) - len(written)) <= 1]
        if alike:
            return letters[alike[0]]
    return next((letters[each] for each in letters if each.startswith(written) or each.endswith(written)), None)


def _letters(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())


def unknown_name(
    kind: str, name: str, known: Sequence[str], where: object, *, role: str | None = None, used: Iterable[str] = ()
) -> StudyError:
    """Return the error for a column or array that ``where`` does not have, with a suggestion.

    Parameters
    ----------
    kind : str
        ``column``, ``array`` or ``table``.
    name : str
        The missing name.
    known : sequence of str
        The names in ``where``.
    where : object
        The table, as the message names it.
    role : str, optional
        The column's role in a study, such as ``label``. The message then names the study, which may contain the typo.
    used : iterable of str
        Names with a use already. They are not suggested: renaming such a column would corrupt the table.
    """
    taken = {*used}
    free = [each for each in known if each not in taken]
    what = f"the study's {role} {name!r} is no {kind} of {where}" if role else f"{where} has no {kind} {name!r}"
    if near := near_name(name, free):
        return StudyError(f"{what}: did you mean {near!r}?")
    if len(free) == len(known):
        return StudyError(f"{what}: it has {listed(closest_first(name, known))}")
    unused = f"unused {kind}s: {listed(closest_first(name, free))}" if free else f"it has no unused {kind}"
    return StudyError(f"{what}; {unused}")


def closest_first(name: str, known: Iterable[str]) -> list[str]:
    """Sort names by their similarity to ``name``; equally similar names keep their order.

    Examples
    --------
    >>> closest_first("is_default", ["age", "income", "defaulted", "is_old"])
    ['defaulted', 'is_old', 'income', 'age']
    """
    matcher = SequenceMatcher(b=_letters(name))

    def similarity(each: str) -> float:
        matcher.set_seq1(_letters(each))
        return matcher.ratio()

    return sorted(known, key=similarity, reverse=True)


def listed(names: Iterable[str]) -> str:
    """Return the first few names for a message, quoted."""
    return first_of([repr(name)[:40] for name in names], 8) or "nothing"


def first_of(values: Sequence[object], most: int = 12, *, between: str = ", ") -> str:
    """Return the first values as ``a, b, c and 4 more``."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return f"{between.join(map(str, values[:most]))}{more}"

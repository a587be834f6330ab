"""Values that look as if they had an order: a hint for whoever looks at a draft, no more."""

from __future__ import annotations

import re
from collections.abc import Iterable

SCALES = tuple(
    tuple(scale.split())
    for scale in (
        "none minimal mild moderate severe critical",
        "no slight some much extreme",
        "very_low low lower medium middle mid moderate normal average higher high very_high",
        "tiny xs s small m medium l large xl xxl huge",
        "never rarely seldom occasionally sometimes often usually always",
        "very_bad bad very_poor poor fair average satisfactory good very_good excellent",
        "strongly_disagree disagree neutral neither agree strongly_agree",
        "very_dissatisfied dissatisfied neutral satisfied very_satisfied",
        "none primary elementary secondary high_school bachelor bachelors master masters doctorate phd",
        "child teenager adult senior",
        "young middle old",
        "weekly monthly quarterly yearly",
        "i ii iii iv v vi",
        "first second third fourth fifth",
        "short medium long",
        "light moderate heavy",
        "slow normal fast",
    )
)
"""Words from little to much; three or more of one line, and no other word, are a scale."""

_NUMBERED = re.compile(r"([^0-9]*?)([<>]?)=?\s*([0-9]+(?:\.[0-9]+)?)(?:\s*(?:-|–|to)\s*[0-9.]+|\+)?([^0-9]*)")
_SIGNS = ("<", "", ">")


def in_order(values: Iterable[str]) -> tuple[str, ...] | None:
    """The values from little to much, where they look as if they had an order.

    Examples
    --------
    >>> in_order(["medium", "High", "low"]), in_order(["grade 2", "grade 10", "grade 1"])
    (('low', 'medium', 'High'), ('grade 1', 'grade 2', 'grade 10'))
    >>> in_order(["18-25", "65+", "26-64"]), in_order(["A", "B", "AB", "0"])
    (('18-25', '26-64', '65+'), None)
    """
    values = tuple(values)
    if len(values) < 3:
        return None
    words = {value: re.sub(r"[\s_-]+", "_", value.strip().casefold()) for value in values}
    for scale in SCALES:
        if len(set(words.values())) == len(values) and set(words.values()) <= set(scale):
            return tuple(sorted(values, key=lambda value: scale.index(words[value])))
    found = {value: _NUMBERED.fullmatch(value.strip()) for value in values}
    numbered = {value: each for value, each in found.items() if each}
    alike = {(each[1].strip().casefold(), each[4].strip().casefold()) for each in numbered.values()}
    steps = {value: (float(each[3]), _SIGNS.index(each[2])) for value, each in numbered.items()}
    if len(numbered) == len(values) == len(set(steps.values())) and len(alike) == 1:
        return tuple(sorted(values, key=steps.__getitem__))
    return None


def order_hint(values: Iterable[str]) -> str:
    """What to say of a category whose values look ordered; nothing for others."""
    found = in_order(values)
    if found is None:
        return ""
    listed = ", ".join(f'"{value}"' for value in found)
    return f'its values look ordered; if they are: kind = "ordinal", values = [{listed}]'


def grade_hint(low: float, high: float, n_values: int) -> str:
    """What to say of a few whole numbers, such as 1 to 5, which may be grades and not amounts."""
    whole = float(low).is_integer() and float(high).is_integer()
    if not whole or not 3 <= n_values <= 10 or n_values != high - low + 1 or low not in (0.0, 1.0):
        return ""
    listed = ", ".join(f'"{k}"' for k in range(int(low), int(high) + 1))
    return f'if these are grades and not amounts: kind = "ordinal", values = [{listed}]'

"""Figures are readable in grey."""

from __future__ import annotations

from itertools import pairwise

from looping import case
from matplotlib.colors import to_rgb

from dpadmm.figures.style import kinds, steps


def lightness(color: object) -> float:
    red, green, blue = to_rgb(color)  # type: ignore[arg-type]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_steps_go_from_dark_to_light_with_their_own_markers_and_dashes():
    for count in [1, 2, 4, 6]:
        with case(count):
            looks = steps(count)
            shades = [lightness(look.color) for look in looks]
            assert shades == sorted(shades)
            assert len({round(shade, 2) for shade in shades}) == count
            assert len({look.marker for look in looks}) == len({look.dash for look in looks}) == count


def test_methods_differ_in_grey():
    looks = list(kinds([f"method {i}" for i in range(6)]).values())
    shades = [lightness(look.color) for look in looks]
    assert all(b - a > 0.03 for a, b in pairwise(shades))
    assert len({(look.marker, look.dash) for look in looks}) == 6

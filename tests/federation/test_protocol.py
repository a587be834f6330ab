"""Names on the wire, and who may say what to whom."""

from __future__ import annotations

import pytest
from looping import case

from dpadmm._base.errors import StudyError
from dpadmm.federation.protocol import (
    AGGREGATOR,
    AGGREGATOR_USER,
    MissingPackages,
    check_name,
    subjects_of,
    user_of,
)


def test_a_name_that_could_be_another_subject_is_refused() -> None:
    for name in ["", "-a", "A", "a b", "a.b", "a" * 41, "a\n", "ä"]:
        with (
            case(name),
            pytest.raises(StudyError, match="is not a valid site name: use 1 to 40 lowercase letters"),
        ):
            check_name(name)


def test_names_that_are_allowed() -> None:
    assert [check_name(name) for name in ("a", "7", "a" * 40, "north-2")] == ["a", "7", "a" * 40, "north-2"]


def test_no_site_can_be_called_like_the_aggregator() -> None:
    assert (AGGREGATOR, AGGREGATOR_USER) == ("aggregator", "aggregator@dpadmm")
    with pytest.raises(StudyError, match="'aggregator' is reserved"):
        check_name("aggregator")


def test_sites_speak_to_the_aggregator_and_it_to_all() -> None:
    assert subjects_of("north") == ("dpadmm.*.up.north", "dpadmm.*.down")
    assert subjects_of(AGGREGATOR) == ("dpadmm.*.down", "dpadmm.*.up.*")
    assert user_of("north", "0a") == "north.0a@dpadmm"


def test_missing_packages_say_what_to_install() -> None:
    assert str(MissingPackages()) == "federation needs more packages: pip install 'dpadmm[federation]'"

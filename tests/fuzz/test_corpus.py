"""Inputs found by fuzzing: each is accepted, or refused in one sentence.

``make fuzz`` searches for more. Inputs that once made a reader fail are called ``failed-*`` and stay here.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fuzz.parsers import CORPUS, READERS, ReaderFailure, outcome

MOST_MEMORY = 64 * 2**20
"""For one of these inputs, none of which is longer than 12 kB."""


def stored(name: str) -> list[Path]:
    return sorted((CORPUS / name).iterdir())


@pytest.mark.parametrize("name", READERS)
def test_every_stored_input_is_accepted_or_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    outcomes = []
    for path in stored(name):
        tracemalloc.start()
        try:
            outcomes.append(outcome(name, path.read_bytes(), tmp_path))
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY, f"{name}/{path.name} fills the memory"
        except ReaderFailure as problem:
            pytest.fail(f"{name}/{path.name}: {problem}")
        finally:
            tracemalloc.stop()
    assert None in outcomes, "no input is accepted: the reader is not reached"
    assert len({type(item) for item in outcomes}) > 1, "no input is refused"


def test_every_reader_has_a_folder_and_every_folder_a_reader() -> None:
    assert {str(path.parent.relative_to(CORPUS)) for path in CORPUS.glob("*/*/*")} == set(READERS)


def test_corpus_is_small_and_has_no_secrets_or_machine_paths() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 350_000
    assert len(files) < 600
    for path in files:
        content = path.read_bytes()
        for secret in (b"PRIVATE", b"/home/", b"/root/", b"/tmp/", b"/work/", b"/Users/", b"C:\\"):
            assert secret not in content, f"{path.name} has {secret!r}"


@pytest.mark.parametrize("raised", [ValueError("x"), RecursionError(), MemoryError(), UserWarning("x")])
def test_other_errors_fail_the_test(raised: Exception, tmp_path: Path, monkeypatch) -> None:
    def broken(data: bytes, folder: Path) -> None:
        raise raised

    monkeypatch.setitem(READERS, "toml/site", broken)
    with pytest.raises(ReaderFailure, match=type(raised).__name__):
        outcome("toml/site", b"", tmp_path)

"""TOML files of users: a table, or one sentence."""

from __future__ import annotations

import pytest
from looping import case

from dpadmm import StudyError
from dpadmm.files.toml import MAX_BYTES, read_toml


def test_a_table_with_windows_line_ends(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes('name = "ä"\r\ntext = """\r\na\r\nb"""\r\n'.encode())
    assert read_toml(path) == {"name": "ä", "text": "a\nb"}


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    path = tmp_path / "a.toml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert read_toml(path) == {}
    path.write_bytes(b"[" * (MAX_BYTES + 1))  # nested too deeply if it were parsed
    with pytest.raises(StudyError, match="larger than 4 MB"):
        read_toml(path)


def test_an_error_is_one_sentence(tmp_path_factory: pytest.TempPathFactory):
    for content, complaint in [
        (b"a = [", "not valid TOML"),
        (b"a = 99999999999999999999", "more than 64 bits"),
        (b"a = " + b"[" * 100_000, "too deep"),
        (b".".join([b"a"] * 200) + b" = 1", "too deep"),  # without a single bracket
        (b"\xff\xfea\x00", "cannot be read as a text file"),
    ]:
        with case(content, complaint):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "a.toml"
            path.write_bytes(content)
            with pytest.raises(StudyError, match=complaint):
                read_toml(path)


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(StudyError, match="cannot be read"):
        read_toml(tmp_path)
    with pytest.raises(StudyError, match="no such file"):
        read_toml(tmp_path / "none.toml")

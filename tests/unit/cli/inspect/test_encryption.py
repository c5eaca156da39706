"""What doctor says of an encrypted store."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.cli.inspect.examination import encryption
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.encrypted import Encrypted
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.trios import put

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
    put(Encrypted(inner, OLD), "old", "one")
    put(Encrypted(inner, Keyring({"foreign": bytes(32)})), "foreign", "one")
    put(inner, "plain", "one")

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

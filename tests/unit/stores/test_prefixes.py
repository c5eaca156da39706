"""What is wrapped around a store is said by the words before its address."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores import home_of, open_store, store_of
from graflow_ckpt.stores.prefixes import WRAPPERS, Layer, begins_like_one, divided, prefix_of, unwrapped


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("plain", "other"):
        monkeypatch.setitem(WRAPPERS, word, ("tests.unit.stores.wrappers", word.capitalize()))


@pytest.mark.parametrize(
    ("text", "layers", "rest"),
    [
        ("plain+sqlite:///runs.db", (Layer("plain"),), "sqlite:///runs.db"),
        ("plain+other+s3://b/p", (Layer("plain"), Layer("other")), "s3://b/p"),
        ("PLAIN+memory:", (Layer("plain"),), "memory:"),
        ("plain.a%2Bb+redis+sentinel://h", (Layer("plain", "a+b"),), "redis+sentinel://h"),
        ("redis+sentinel://h", (), "redis+sentinel://h"),
        ("nosuch+plain+sqlite:///x", (), "nosuch+plain+sqlite:///x"),
        ("plain+runs/x.pkl", (), "plain+runs/x.pkl"),
        ("/srv/plain+memory:", (), "/srv/plain+memory:"),
    ],
)
def test_the_words_before_an_address_are_taken_apart(text: str, layers: tuple[Layer, ...], rest: str) -> None:
    assert divided(text) == (layers, rest)
    assert unwrapped(text) == rest


def test_a_prefix_that_is_written_is_read_as_the_same() -> None:
    written = str(Layer("plain", "a+b/ü:")) + str(Layer("other"))

    assert divided(f"{written}memory:")[0] == (Layer("plain", "a+b/ü:"), Layer("other"))
    assert prefix_of(f"{written}memory:") == written


def test_the_outermost_wrapper_is_named_first() -> None:
    store = open_store("plain.x+other+memory://prefixes")

    assert store.url == "plain.x+other+memory://prefixes"
    assert store.folder == store.url
    assert type(store).__name__ == "Plain"


def test_a_path_leads_to_its_wrapped_store() -> None:
    assert store_of("plain+memory://prefixes/best.pkl") == "plain+memory://prefixes"
    assert store_of("plain+file:///srv/runs/best.pkl") == "plain+file:///srv/runs"
    assert store_of("plain+other+sqlite:////srv/runs.db/best") == "plain+other+sqlite:////srv/runs.db"
    assert store_of("plain+best.pkl") == "."


def test_a_home_is_there_if_what_is_wrapped_is(tmp_path: object) -> None:
    assert home_of(f"plain+file://{tmp_path}") == f"plain+file://{tmp_path}"
    assert home_of(f"plain+file://{tmp_path}/nowhere") is None


@pytest.mark.parametrize("text", ["plain+checkpoints", "plain+other+/srv/runs", "plain.x+"])
def test_a_folder_that_begins_with_a_word_is_refused_as_a_store(text: str) -> None:
    assert begins_like_one(text)

    with pytest.raises(CheckpointError, match="no address") as refused:
        open_store(text)

    assert "file:///" in refused.value.hint


def test_a_word_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"nosuch\+memory"):
        open_store("nosuch+memory://x")


@pytest.mark.parametrize(
    ("package", "word", "extra"),
    [("cryptography", "encrypted", "encryption"), ("zstandard", "compressed", "compression")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(package: str, word: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from graflow_ckpt.core.errors import PackageMissing\n"
        "from graflow_ckpt.stores import open_store\n"
        "try:\n"
        f"    open_store('{word}+memory:')\n"
        "except PackageMissing as missing:\n"
        "    print(missing.extra, missing)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(extra)
    assert f"graflow-ckpt[{extra}]" in done.stdout


def test_an_argument_is_refused_where_there_is_none() -> None:
    with pytest.raises(CheckpointError, match="behind a dot") as refused:
        open_store("other.x+memory://y")

    assert "other+memory://y" in refused.value.hint

"""Which store a URL or a path asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores import home_of, open_store, open_store_of, store_of
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.prefixes import WRAPPERS, Layer, begins_like_one, divided, prefix_of, unwrapped


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    for where in (str(tmp_path), tmp_path, f"file://{tmp_path}", f"FILE://{tmp_path}"):
        store = open_store(where)

        assert isinstance(store, LocalStore)
        assert store.url == f"file://{tmp_path}"


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("REDISS://u:p@h", "rediss://h:6379/0"),
        ("redis+sentinel://a,b/main/1", "redis+sentinel://a:26379,b:26379/main/1"),
    ],
)
def test_a_server_is_a_store_that_is_not_asked_before_it_is_used(where: str, url: str) -> None:
    store = open_store(where)

    assert (store.url, store.folder, store.shared) == (url, url, True)


@pytest.mark.parametrize("where", ["s3://bucket/some/prefix", "gs://bucket", "az://container/x"])
def test_a_bucket_is_a_store_that_is_not_asked_before_it_is_used(where: str) -> None:
    store = open_store(where)

    assert (store.url, store.folder, store.shared) == (where, where, True)


@pytest.mark.parametrize(
    ("package", "where", "extra"),
    [
        ("redis", "redis://h:1/0", "fleet"),
        ("obstore", "s3://bucket", "objects"),
        ("psycopg", "postgresql://h/d", "postgres"),
        ("cryptography", "encrypted+memory:", "encryption"),
        ("zstandard", "compressed+memory:", "compression"),
    ],
)
def test_a_store_without_its_package_names_the_extra(package: str, where: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from graflow_ckpt.stores import open_store, store_of
open_store("checkpoints")
store_of("postgresql://h/d/best")
try:
    open_store({where!r})
except ImportError as error:
    print(error.extra, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"{extra} ")
    assert f"graflow-ckpt[{extra}]" in done.stdout


@pytest.mark.parametrize(
    ("path", "store"),
    [
        ("best.pkl", "."),
        ("checkpoints/best.pkl", "checkpoints"),
        ("redis://u:p@h:1/2/best", "redis://u:p@h:1/2"),
        ("redis://best", "redis://e:9/3"),
        ("redis://*", "redis://e:9/3"),
        ("s3://bucket/best", "s3://bucket"),
        ("s3://bucket/a/b/best.pkl?region=eu", "s3://bucket/a/b?region=eu"),
    ],
)
def test_a_path_leads_to_its_store(path: str, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", "redis://e:9/3")

    assert store_of(path) == store


def test_a_name_alone_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAFLOW_CKPT_REDIS_URL", raising=False)

    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_REDIS_URL"):
        open_store_of("redis://best")


def test_the_home_of_a_session_is_taken_where_it_can_be_had(tmp_path: Path) -> None:
    assert home_of(f"file://{tmp_path}") == str(tmp_path)
    assert home_of("redis://h:1/0") == "redis://h:1/0"
    assert home_of(f"{tmp_path}/gone") is None
    assert home_of("") is None


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"ftp://.*file://"):
        open_store("ftp://host/x")


@pytest.mark.parametrize("where", ["", "file://"])
def test_no_place_at_all_is_not_the_root_folder(where: str) -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        open_store(where)


@pytest.mark.parametrize("where", ["encryptd+/srv/runs", "metred+memory:"])
def test_a_wrapper_that_is_mistyped_is_no_folder(where: str) -> None:
    with pytest.raises(CheckpointError, match=r"is called \w+\+\. There is: .*encrypted\+"):
        open_store(where)

    assert open_store(f"./{where}").url.startswith("file:///")


@pytest.mark.parametrize("where", ["c++runs", "a+b", "1+/runs"])
def test_a_plus_in_the_name_of_a_folder_is_one(where: str, tmp_path: Path) -> None:
    assert open_store(where).url.endswith(where)


@pytest.mark.parametrize("where", ["~", "~/runs", "sqlite:///~/runs.db", "encrypted+file://~/runs"])
def test_no_folder_is_called_like_a_home(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    with pytest.raises(CheckpointError, match="/home/me") as refused:
        open_store(where)

    assert "~" not in refused.value.hint


# --- prefixes ---------------------------------------------------------------------------


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


def test_an_argument_is_refused_where_there_is_none() -> None:
    with pytest.raises(CheckpointError, match="behind a dot") as refused:
        open_store("other.x+memory://y")

    assert "other+memory://y" in refused.value.hint

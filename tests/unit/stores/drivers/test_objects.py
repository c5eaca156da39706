"""The object store as the layers above use it: paths, listings, and what other processes see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.stores.drivers.objects.names import is_objects, place_of, split
from graflow_ckpt.stores.drivers.objects.store import ObjectStore, checked
from tests.object_servers import ObjectServer
from tests.trios import content, held, put_holding
from tests.unit.stores.interruptions import happening
from tests.unit.stores.texts import keys, names, put, read

ROOT = Path(__file__).parents[4]


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


# --- paths -----------------------------------------------------------------------------


def test_prefixes_are_stores_of_their_own(store: ObjectStore, object_server: ObjectServer) -> None:
    put(store, "best", "one")

    assert names(ObjectStore(object_server.url)) == []


def test_a_bucket_may_be_a_store_without_a_prefix(object_server: ObjectServer, objects_url: str) -> None:
    whole = ObjectStore(f"{object_server.scheme}://bucket?{objects_url.partition('?')[2]}")
    path = put(whole, "in-the-root", "one", size=20_000)

    assert path == f"{object_server.scheme}://bucket/in-the-root"
    assert read(whole, path) == ("one", b"one" * 20_000, b"one")
    assert "in-the-root" in names(whole)
    assert any(key.startswith("data/@in-the-root/") for key in keys(whole, "data"))
    assert whole.delete(path) is True


def test_stores_in_one_bucket_share_their_clients_unless_the_environment_has_changed(
    store: ObjectStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = store._opened(), ObjectStore(object_server.url)._opened()

    assert mine._for(0) is other._for(0)
    assert mine._for(0) is not mine._for(1 << 23)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    assert ObjectStore(object_server.url)._opened()._for(0) is not mine._for(0)


# --- listings --------------------------------------------------------------------------


def test_what_is_written_anew_while_it_is_listed_is_listed_as_it_is_now(
    store: ObjectStore, objects_url: str
) -> None:
    other, far = ObjectStore(objects_url), "x" * (64 << 10)  # a meta that has to be fetched
    changes: dict[str, tuple[Callable[[], object], list[str]]] = {
        "written anew": (lambda: put(other, "best", "two", note=far), ["two"]),
        "deleted": (lambda: other.delete("best"), []),
        "of another session": (lambda: put(other, "best", "two", session="t", note=far), []),
    }
    for change, found in changes.values():
        put(store, "best", "one", note=far)

        with happening(store, 1, change) as point:  # its record is known, and its meta not yet
            listed = [json.loads(raw)["stage"] for _, raw in store.list("s")]

        assert point.happened
        assert listed == found


# --- processes -------------------------------------------------------------------------


def test_a_forked_child_is_told_and_does_not_hang(objects_url: str) -> None:
    program = f"""
import os
from graflow_ckpt.core.errors import CheckpointError, Fenced
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from tests.unit.stores.texts import keys, names, put, read
store = ObjectStore({objects_url!r})
lease = store.acquire("s")
put(store, "best", "parent", lease)
if os.fork() == 0:
    for each in (store, ObjectStore({objects_url!r}), ObjectStore("s3://another")):
        try:
            each.meta("best")
        except CheckpointError as error:
            print(error, flush=True)
    try:
        put(store, "best", "child", lease)
    except Fenced as error:
        print(error, flush=True)
    lease.release()
    os._exit(0)
assert os.wait()[1] == 0
lease.check()
print(read(store, "best")[0])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout.count("in use when this process was forked") == 3
    assert "forked from its owner" in done.stdout
    assert done.stdout.splitlines()[-1] == "parent"


# --- names and addresses ----------------------------------------------------------------


OWN = "session_s_step_1_1700000000-1"


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket/a//b/", "s3://bucket/a/b"),
        ("gcs://my.bucket/x", "gs://my.bucket/x"),
        ("azure://container/x", "az://container/x"),
        ("s3://bucket/x?endpoint=http://h:1&region=eu", "s3://bucket/x"),
    ],
)
def test_an_address_is_shown_without_its_options(where: str, shown: str) -> None:
    assert str(place_of(where)) == shown
    assert "endpoint" not in repr(place_of(where))


def test_options_of_a_bucket_are_remembered_where_only_its_text_is_left() -> None:
    place_of("s3://remembered/x?endpoint=http://h:1").remember()

    assert place_of("s3://remembered/y").options == {"endpoint": "http://h:1"}
    assert place_of("s3://another/y").options == {}


@pytest.mark.parametrize(
    "where",
    [
        "s3://",
        "s3://hunter2:hunter2@bucket",
        "s3://bucket/../x",
        "s3://bucket?secret_access_key=hunter2",
        "s3://bucket?aws_access_key_id=hunter2",
        "az://container?sas_token=hunter2",
        "s3://bucket?session_token=hunter2",
        "s3:///hunter2",
        "http://bucket",
    ],
)
def test_what_is_no_address_or_holds_a_secret_is_refused_without_showing_it(where: str) -> None:
    with pytest.raises(BadAddress) as bad:
        place_of(where)

    assert "hunter2" not in f"{bad.value} {bad.value.ids}"


@pytest.mark.parametrize(
    ("path", "store", "base"),
    [
        ("s3://bucket/best", "s3://bucket", "best"),
        ("s3://bucket/a/b/best.pkl", "s3://bucket/a/b", "best"),
        ("s3://bucket/a/best.meta.json?region=eu", "s3://bucket/a?region=eu", "best"),
        ("s3://bucket", "s3://bucket", ""),
        ("s3://bucket/", "s3://bucket", ""),
    ],
)
def test_the_last_piece_of_a_path_is_the_name(path: str, store: str, base: str) -> None:
    assert split(path) == (store, base)


def test_no_key_of_the_longest_name_is_longer_than_a_service_allows(store: ObjectStore) -> None:
    name = "x" * 800
    value = content(1)

    path = put_holding(store, name, "y" * (200 << 10), [value])

    assert held(store, path) == [value]
    assert [path for path, _ in store.list()] == [path]
    assert max(map(len, keys(store))) <= 1024 - 100  # a prefix has some room, too


def test_names_that_cannot_be_are_refused() -> None:
    for name in ("", ".", "..", "x" * 801, "☃" * 200):
        with pytest.raises(CheckpointError, match="cannot be the name"):
            checked(name)


def test_what_leads_to_a_bucket() -> None:
    assert all(is_objects(path) for path in ("s3://b/x", "GS://b/x", "az://c/x", "azure://c/x", "gcs://b/x"))
    assert not any(is_objects(path) for path in ("redis://h/x", "s3", "/s3/x", "file:///s3"))

"""The object store as the layers above use it: paths, listings, and what other processes see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graflow_ckpt.stores.objects_chunks import CHUNK
from graflow_ckpt.stores.objects_head import Head
from graflow_ckpt.stores.objects_put import SMALL
from tests.unit.stores.buckets import LARGE, keys, names

from graflow_ckpt.core.errors import BadAddress, CheckpointCorrupt, CheckpointError
from graflow_ckpt.stores import objects_bucket
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_names import (
    decoded,
    encoded,
    head_key,
    is_objects,
    place_of,
    split,
    target_of,
)
from tests.object_servers import ObjectServer
from tests.unit.stores.interruptions import happening
from tests.unit.stores.redis_trios import own_name, put, read

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


# --- paths -----------------------------------------------------------------------------


def test_prefixes_are_stores_of_their_own(store: ObjectStore, object_server: ObjectServer) -> None:
    put(store, "best", "one")

    assert names(ObjectStore(object_server.url)) == []


def test_a_bucket_may_be_a_store_without_a_prefix(object_server: ObjectServer, objects_url: str) -> None:
    whole = ObjectStore(f"{object_server.scheme}://bucket?{objects_url.partition('?')[2]}")
    path = put(whole, "in-the-root", "one", size=LARGE)

    assert path == f"{object_server.scheme}://bucket/in-the-root"
    assert read(whole, path) == ("one", b"one" * LARGE, b"one")
    assert "in-the-root" in names(whole)
    assert "data/@" in {key.rpartition("/")[0].rpartition("/")[0] for key in keys(whole, "data")}
    assert whole.delete(path) is True


def test_stores_in_one_bucket_share_their_clients_unless_the_environment_has_changed(
    store: ObjectStore, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = store._all.bucket, ObjectStore(object_server.url)._all.bucket

    assert mine._for(0) is other._for(0)
    assert mine._for(0) is not mine._for(CHUNK)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    assert ObjectStore(object_server.url)._all.bucket._for(0) is not mine._for(0)


# --- listings --------------------------------------------------------------------------


def test_the_newest_is_listed_first_and_no_pickle_is_fetched(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (3, 1, 2):
        put(store, own_name(number), str(number), size=100_000)
    fetched: list[int] = []
    get_range = store._all.bucket.get_range

    def watched(key: str, start: int, length: int) -> objects_bucket.Buffer | None:
        fetched.append(length)
        return get_range(key, start, length)

    monkeypatch.setattr(store._all.bucket, "get_range", watched)

    assert names(store, "s") == [own_name(2), own_name(1), own_name(3)]
    assert sum(fetched) < 200


def test_more_than_one_page_is_listed(store: ObjectStore) -> None:
    for number in range(70):
        put(store, own_name(number), str(number), note="x" * SMALL)  # metas that have to be fetched

    assert [json.loads(raw)["stage"] for _, raw in store.list("s")] == [str(n) for n in range(69, -1, -1)]


def test_a_meta_that_is_gone_is_listed_as_damaged(store: ObjectStore) -> None:
    path = put(store, own_name(), "one", note="x" * SMALL)
    store._all.bucket.delete(keys(store, "data"))

    assert list(store.list("s")) == [(path, b"")]
    with pytest.raises(CheckpointCorrupt, match="lacks bytes"):
        store.meta(path)


def test_what_is_written_anew_while_it_is_listed_is_listed_as_it_is_now(
    store: ObjectStore, objects_url: str
) -> None:
    other, far = ObjectStore(objects_url), "x" * SMALL  # a meta that has to be fetched
    changes: dict[str, tuple[Callable[[], object], list[str]]] = {
        "written anew": (lambda: put(other, "best", "two", note=far), ["two"]),
        "deleted": (lambda: other.delete("best"), []),
        "of another session": (lambda: put(other, "best", "two", session="t", note=far), []),
    }
    for change, found in changes.values():
        put(store, "best", "one", note=far)

        with happening(store, 2, change) as point:  # its record is known, and its meta not yet
            listed = [json.loads(raw)["stage"] for _, raw in store.list("s")]

        assert point.happened
        assert listed == found


# --- processes -------------------------------------------------------------------------


def test_a_forked_child_is_told_and_does_not_hang(objects_url: str) -> None:
    program = f"""
import os
from graflow_ckpt.core.errors import CheckpointError, Fenced
from graflow_ckpt.stores.objects import ObjectStore
from tests.unit.stores.interruptions import happening
from tests.unit.stores.redis_trios import put, read
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


def test_readers_see_whole_checkpoints_while_they_are_written_anew(store: ObjectStore) -> None:
    program = f"""
from graflow_ckpt.stores.objects import ObjectStore
from tests.unit.stores.interruptions import happening
from tests.unit.stores.redis_trios import put
store = ObjectStore({store.url + "?" + "&".join(f"{k}={v}" for k, v in store._place.options.items())!r})
for n in range(30):
    put(store, "best", f"text{{n}}", size={LARGE})
"""
    put(store, "best", "text", size=LARGE)
    writer = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    seen = set()
    while writer.poll() is None:
        stage, values, state = read(store, "best")
        assert (values, state) == (stage.encode() * LARGE, stage.encode())
        seen.add(stage)

    assert writer.returncode == 0
    assert len(seen) > 1
    assert len(keys(store, "data")) == 1


@pytest.mark.parametrize("head", [b"{", b"[]", b"\xff", b'{"epoch": 1e999}', b"[" * 100_000])
def test_a_head_that_nobody_can_have_written_hides_no_other_session(
    store: ObjectStore, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, own_name(1), "kept")
    bucket = store._all.bucket
    bucket.swap(head_key("bad"), head, None)

    listed = [path for path, _ in store.list()]

    assert listed == [f"{store.folder}/{own_name(1)}"]
    assert "What says who owns session 'bad' is damaged" in caplog.text
    for look in (store.owner, store.acquire, lambda session: list(store.list(session))):
        with pytest.raises(CheckpointCorrupt, match="is damaged"):
            look("bad")


@pytest.mark.parametrize(
    ("field", "value"),
    [("commits", []), ("commits", {"x": 1}), ("epoch", 1e999), ("epoch", -1),
     ("segments", 7), ("announced", 7), ("owner", {"pid": "../x"}), ("owner", 7), ("seconds", {})],
)  # fmt: skip
def test_a_head_with_a_field_of_another_kind_is_damaged(store: ObjectStore, field: str, value: Any) -> None:
    said = json.loads(Head().encode()) | {field: value}
    store._all.bucket.swap(head_key("bad"), json.dumps(said).encode() + b"\n", None)

    with pytest.raises(CheckpointCorrupt, match="is damaged"):
        store.owner("bad")


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


@pytest.mark.parametrize("name", ["best", "a b", "50%", "x=y", "#?*&+", "naïve ☃", "a\\b", "\udcff", "..."])
def test_every_name_has_a_key_of_its_own_and_comes_back_from_it(name: str) -> None:
    key = encoded(name)

    assert decoded(key) == name
    assert key.isascii()
    assert not set(key) & set("%#?*/\\ ")


def test_names_that_cannot_be_are_refused() -> None:
    for name in ("", ".", "..", "x" * 901, "☃" * 200):
        with pytest.raises(CheckpointError, match="cannot be the name"):
            target_of(name)


def test_the_own_names_of_a_session_belong_to_it() -> None:
    assert target_of(OWN).session == "s"
    assert target_of("best").session is None
    assert target_of(f"x{OWN}").session is None


def test_what_leads_to_a_bucket() -> None:
    assert all(is_objects(path) for path in ("s3://b/x", "GS://b/x", "az://c/x", "azure://c/x", "gcs://b/x"))
    assert not any(is_objects(path) for path in ("redis://h/x", "s3", "/s3/x", "file:///s3"))

"""The object store as the layers above use it: paths, listings, sizes, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    SaveOutcomeUnknown,
    ServerError,
    ServerGone,
    ServerRefuses,
    ServerTooOld,
)
from graflow_ckpt.core.protocols import CheckpointStore, Sink
from graflow_ckpt.stores import objects_bucket, open_store_of
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_chunks import CHUNK
from graflow_ckpt.stores.objects_head import Head
from graflow_ckpt.stores.objects_names import head_key
from graflow_ckpt.stores.objects_put import INLINE, SMALL
from tests.object_servers import ObjectServer
from tests.proxy import Proxy
from tests.servers import free_port
from tests.unit.stores.redis_trios import all_of, own_name, parts, put, read

ROOT = Path(__file__).parents[3]
LARGE = 10_000  # times its text: more than what goes with the record


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


def names(store: CheckpointStore, *args: str | None) -> list[str]:
    return [path.rpartition("/")[2] for path, _ in store.list(*args)]


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in store._all.bucket.list(prefix)]


@contextmanager
def requests(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the bucket is asked for meanwhile, in order."""
    made: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("get", "get_range", "_put", "delete", "list", "written_at"):
            patch.setattr(
                store._all.bucket, name, partial(_noted, made, name, getattr(store._all.bucket, name))
            )
        yield made


def _noted(made: list[str], name: str, operation: Callable[..., object], *args: object) -> object:
    if (name, *args) != ("delete", []):  # nothing is asked for that
        made.append(name)
    return operation(*args)


# --- paths -----------------------------------------------------------------------------


def test_a_checkpoint_is_found_under_every_form_of_its_path(store: ObjectStore) -> None:
    put(store, "best.pkl", "one")

    for path in ("best", "best.pkl", f"{store.folder}/best", f"{store.folder}/best.state.json"):
        assert json.loads(store.meta(path))["stage"] == "one"
        assert store.open(path, "pkl", "one").size == 3


def test_a_path_alone_leads_back_to_its_store(store: ObjectStore) -> None:
    path = put(store, "best", "one")

    assert read(open_store_of(path), path) == ("one", b"one", b"one")


def test_a_path_of_another_store_is_not_its_own(store: ObjectStore, tmp_path: Path) -> None:
    assert store.takes(f"{store.folder}/best.pkl") == f"{store.folder}/best"
    assert store.takes(f"{store.folder}/{own_name()}") == f"{store.folder}/{own_name()}"
    others = (f"{store.folder}/deeper/best", "s3://other/best", "checkpoints/best.pkl", "redis://best")
    for path in (*others, store.folder):
        assert store.takes(path) is None
    with pytest.raises(CheckpointError, match=f"is not in {store.folder}"):
        store.meta("s3://other/best")
    assert LocalStore(tmp_path).takes("s3://bucket/best") is None


def test_prefixes_are_stores_of_their_own(store: ObjectStore, object_server: ObjectServer) -> None:
    put(store, "best", "one")

    assert names(ObjectStore(object_server.url)) == []


def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    for name in ("best", own_name()):
        for call in (store.meta, lambda path: store.open(path, "pkl", "one")):
            with pytest.raises(CheckpointNotFound, match=rf"/{name} not found"):
                call(name)
        assert store.delete(name) is False


def test_a_session_puts_no_checkpoint_under_the_name_of_another_ones(store: ObjectStore) -> None:
    lease = store.acquire("s")

    with pytest.raises(CheckpointError, match="name of a checkpoint of session 't'"):
        put(store, own_name(session="t"), "one", lease)

    put(store, own_name(session="t"), "one")  # a worker of that session, which is kept elsewhere
    assert names(store, "t") == [own_name(session="t")]
    lease.release()


def test_a_lease_of_something_else_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    lease = LocalStore(tmp_path).acquire("s")

    with pytest.raises(TypeError, match="lease of this store"):
        put(store, "best", "one", lease)

    lease.release()


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


def test_a_session_lists_its_own_and_what_names_it(store: ObjectStore) -> None:
    put(store, own_name(), "one")
    put(store, own_name(session="t"), "one", session="t")
    put(store, "best", "one")
    put(store, "other", "one", session="t")

    assert names(store, "s") == [own_name(), "best"]
    assert sorted(names(store, "t")) == ["other", own_name(session="t")]
    assert len(names(store)) == 4
    assert names(store, "u") == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("best", ["best"]),
        ("b?st.pkl", ["best", "bust"]),
        ("session_s_*", [own_name(1)]),
        ("*", [own_name(1), "best", "bust"]),
        ("none*", []),
    ],
)
def test_a_pattern_is_one_of_names(store: ObjectStore, pattern: str, found: list[str]) -> None:
    for name in (own_name(1), "best", "bust"):
        put(store, name, "one")

    assert sorted(names(store, None, pattern)) == sorted(found)
    assert sorted(names(store, None, f"{store.folder}/{pattern}")) == sorted(found)


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


# --- parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_parts_of_every_size_come_back(store: ObjectStore, size: int) -> None:
    path = put(store, "big", "x", size=size)

    assert read(store, path) == ("x", b"x" * size, b"x")


@pytest.mark.parametrize(("size", "asked"), [(4000, ["_put"]), (400_000, ["_put", "_put"])])
def test_a_save_asks_for_no_more_than_it_needs(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int, asked: list[str]
) -> None:
    lease = store.acquire("s")
    put(store, own_name(1), "one", lease)

    with requests(store, monkeypatch) as made:
        put(store, own_name(2), "two", lease, size=size)

    assert made == asked
    lease.release()


@pytest.mark.parametrize(("size", "asked"), [(4000, ["get"]), (400_000, ["get", "get_range"])])
def test_a_load_asks_for_no_more_than_it_needs(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int, asked: list[str]
) -> None:
    for name in ("best", own_name()):
        path = put(store, name, "one", size=size)

        with requests(store, monkeypatch) as made:
            assert read(store, path) == ("one", b"one" * size, b"one")

        assert made == asked


def test_a_resume_reads_what_a_listing_has_found_without_another_look(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, own_name(1), "one")
    put(store, own_name(2), "two")

    with requests(store, monkeypatch) as made:
        path, _ = next(iter(store.list("s")))
        assert all_of(store.open(path, "state.json", "two")) == b"two"

    assert made == ["get"]


def test_what_a_head_holds_itself_is_bounded(store: ObjectStore) -> None:
    lease = store.acquire("s")
    for number in range(2 * INLINE // SMALL):
        put(store, own_name(number), "x", lease, size=SMALL)

    assert len(lease.head.encode()) < INLINE + 20_000
    for number in range(2 * INLINE // SMALL):
        assert read(store, own_name(number)) == ("x", b"x" * SMALL, b"x")
    lease.release()


def test_parts_that_go_while_somebody_opens_them_are_looked_for_again(store: ObjectStore) -> None:
    path = put(store, "best", "one", size=LARGE)
    other = ObjectStore(store.url)
    store.meta(path)
    put(other, "best", "one", size=LARGE)  # and the data of the former is gone

    assert all_of(store.open(path, "pkl", "one")) == b"one" * LARGE

    store.meta(path)
    other.delete(path)
    with pytest.raises(CheckpointNotFound):
        store.open(path, "pkl", "one")


@pytest.mark.parametrize("name", ["best", own_name()])
def test_a_meta_put_alone_leaves_the_parts_where_they_are(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put(store, name, "one", size=LARGE)
    before = keys(store, "data")
    meta = parts("one", more="sealed anew")[2:]

    with requests(store, monkeypatch) as made:
        store.put(name, meta, lease=None, stage="one")

    assert made == ["get", "_put"]
    assert keys(store, "data") == before
    assert read(store, name) == ("one", b"one" * LARGE, b"one")
    store.put(name, meta, lease=None, stage="another")
    assert keys(store, "data") == []
    with pytest.raises(CheckpointCorrupt, match=r"no pkl"):
        store.open(name, "pkl", "another")


def test_pieces_are_fetched_before_they_are_read_and_no_more_than_a_few(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(store, "big", "x", size=6 * CHUNK)
    source = store.open(path, "pkl", "x")
    with requests(store, monkeypatch) as made:
        source.begin()
        while len(made) < 4:
            time.sleep(0.01)  # until the threads have come to it

        source.close()
        assert source.readinto(memoryview(bytearray(10))) == 0

    assert made == ["get_range"] * 4


def test_a_piece_that_cannot_be_fetched_is_asked_for_again_in_its_turn(store: ObjectStore) -> None:
    path = put(store, "big", "x", size=3 * CHUNK)
    bucket, missing = store._all.bucket, keys(store, "data")[1]
    kept = bucket.get(missing)
    bucket.delete([missing])
    source, buffer = store.open(path, "pkl", "x"), memoryview(bytearray(CHUNK))
    assert source.readinto(buffer) == CHUNK

    for _ in range(2):
        with pytest.raises(CheckpointCorrupt, match=r"lacks bytes of a part \(piece 1"):
            source.readinto(buffer)
    assert kept is not None
    bucket.put(missing, kept.data)

    assert [source.readinto(buffer) for _ in range(3)] == [CHUNK, CHUNK, 0]


def test_what_was_overwritten_or_deleted_leaves_no_data(store: ObjectStore) -> None:
    for name in (own_name(), "best"):
        put(store, name, "one", size=CHUNK)
        put(store, name, "two", size=LARGE)
    assert len(keys(store, "data")) == 2

    for name in (own_name(), "best"):
        assert store.delete(name) is True

    assert keys(store, "data") == []


def test_many_of_a_session_are_deleted_in_one_change(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [put(store, own_name(number), "one", size=LARGE) for number in range(5)]
    other = put(store, own_name(session="t"), "one")
    named = [put(store, f"best{number}", "one", size=LARGE) for number in range(3)]

    with requests(store, monkeypatch) as made:
        assert store.delete_many([*own[:4], own[0], f"{store.folder}/never"]) == 4
    assert made == ["get", "_put", "delete", "get"]

    assert store.delete_many([*own, other, *named[1:]]) == 4
    assert names(store) == ["best0"]
    assert len(keys(store, "data")) == 1
    assert store.delete_many([]) == 0


def test_a_writer_that_fails_leaves_nothing(store: ObjectStore) -> None:
    lease = store.acquire("s")
    put(store, "best", "one", lease, size=LARGE)

    def fails(sink: object) -> None:
        sink.write(b"x" * 3 * CHUNK)  # type: ignore[attr-defined]
        raise RuntimeError("no more")

    for name in ("best", own_name()):
        with pytest.raises(RuntimeError, match="no more"):
            store.put(name, [("pkl", fails), *parts("two")[1:]], lease=lease, stage="two")

    assert read(store, "best")[0] == "one"
    assert len(keys(store, "data")) == 1
    lease.release()


# --- what is wrong with a server -------------------------------------------------------


def test_probing_leaves_nothing_behind(store: ObjectStore) -> None:
    store.probe()

    assert keys(store) == []


@pytest.mark.parametrize("without", ["conditions", "support"])
def test_a_bucket_without_conditional_puts_is_refused_before_anything_is_written(
    without: str, objects_url: str
) -> None:
    with ObjectServer(without=without) as server:
        store = ObjectStore(server.url)
        for call in (store.probe, lambda: store.acquire("s")):
            with pytest.raises(ServerTooOld, match="conditional writes"):
                call()
        with pytest.raises(CheckpointError, match="conditional writes"):
            put(store, "best", "one")

        assert keys(store) == []


def test_nothing_is_asked_before_the_first_use(objects_url: str) -> None:
    store = ObjectStore(f"s3://nobody/x?endpoint=http://127.0.0.1:{free_port()}")

    with pytest.raises(ServerGone, match="cannot be reached") as gone:
        store.probe()

    assert "hunter2" not in f"{gone.value} {store.url} {store.folder} {store!r}"


def test_a_refusal_says_so(objects_url: str) -> None:
    with ObjectServer(without="rights") as server:
        store = ObjectStore(server.url)
        for call in (store.probe, lambda: store.acquire("s"), lambda: store.meta("best")):
            with pytest.raises(ServerRefuses, match="refuses"):
                call()
        with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*/best: .*refuses"):
            put(store, "best", "one")


def test_a_bucket_that_is_not_there_says_so(object_server: ObjectServer, objects_url: str) -> None:
    store = ObjectStore(objects_url.replace("://bucket/", "://no-such-bucket/"))

    for call in (store.probe, lambda: store.acquire("s"), lambda: list(store.list())):
        with pytest.raises(ServerError, match="no such bucket"):
            call()


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ServerError, match="s3://bucket/x cannot be opened"):
        ObjectStore("s3://bucket/x?endpiont=http://h:1").probe()


def test_signatures_in_what_the_library_says_are_not_shown() -> None:
    said = "Error performing PUT https://u:hunter2@h/c/x?sig=hunter2&se=1 in 3s\n\nDebug source:\nhunter2"

    assert objects_bucket.shown(said) == "Error performing PUT https://h/c/x in 3s"


@pytest.fixture
def proxy(object_server: ObjectServer, objects_url: str) -> Iterator[Proxy]:
    with Proxy(object_server) as proxy:
        yield proxy


def test_a_server_that_is_back_in_time_was_not_missed(object_server: ObjectServer, proxy: Proxy) -> None:
    store = ObjectStore(object_server.at("back-in-time", proxy.port))
    lease = store.acquire("s")

    def goes_away(sink: object) -> None:
        sink.write(b"x" * (CHUNK + 1))  # type: ignore[attr-defined]
        proxy.refuse()
        Timer(1.0, proxy.resume).start()

    store.put(own_name(), [("pkl", goes_away), *parts("one")[1:]], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"x" * (CHUNK + 1), b"one")
    lease.release()


def test_what_is_large_may_take_its_time_where_what_is_small_is_given_up(
    object_server: ObjectServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_bucket, "PATIENCE", 0)
    monkeypatch.setitem(objects_bucket._QUICK, "read_timeout", timedelta(seconds=0.2))
    store = ObjectStore(object_server.at("slow-line", proxy.port))
    bucket = store._all.bucket
    bucket.put("large", b"x" * CHUNK)
    proxy.stall()

    with ThreadPoolExecutor(2) as threads:
        put = threads.submit(bucket.put, "large", b"y" * CHUNK)
        got = threads.submit(bucket.get_range, "large", 0, CHUNK)
        with pytest.raises(ServerGone):
            bucket.get("small")
        proxy.resume()

        put.result()
        assert got.result() is not None


def test_a_save_while_the_server_is_away_fails_and_the_next_one_succeeds(
    object_server: ObjectServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_bucket, "PATIENCE", 0.1)
    store = ObjectStore(object_server.at("away", proxy.port))
    lease = store.acquire("s")
    put(store, "best", "one", lease)
    put(store, own_name(), "one", lease)
    proxy.refuse()

    for name in ("best", own_name()):
        with pytest.raises(CheckpointError, match="cannot be reached"):
            put(store, name, "two", lease)
    proxy.resume()

    assert [read(store, name)[0] for name in ("best", own_name())] == ["one", "one"]
    put(store, "best", "three", lease)
    assert read(store, "best")[0] == "three"
    lease.release()


@pytest.mark.parametrize("name", ["best", own_name()])
def test_a_save_that_was_sent_and_not_confirmed_says_so_and_stays_whole(
    object_server: ObjectServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(objects_bucket, "PATIENCE", 0.1)
    store = ObjectStore(object_server.at(f"unknown-{name[:4]}", proxy.port))
    lease = store.acquire("s")
    put(store, name, "one", lease, size=LARGE)
    bucket = store._all.bucket
    swap = bucket.swap

    def swap_and_be_cut_off(key: str, data: bytes, tag: objects_bucket.Tag | None) -> None:
        swap(key, data, tag)
        proxy.refuse()
        bucket.get(key)

    def write_meta(sink: Sink) -> None:  # and then nothing is left to do but the commit
        monkeypatch.setattr(bucket, "swap", swap_and_be_cut_off)
        sink.write(meta)

    *others, (_, _) = parts("two", size=LARGE)
    meta = b'{"session_id": "s", "stage": "two"}'
    with pytest.raises(SaveOutcomeUnknown, match="was sent, but not confirmed"):
        store.put(name, [*others, ("meta.json", write_meta)], lease=lease, stage="two")
    monkeypatch.setattr(bucket, "swap", swap)
    proxy.resume()

    assert read(store, name) == ("two", b"two" * LARGE, b"two")
    put(store, name, "three", lease, size=LARGE)
    assert read(store, name) == ("three", b"three" * LARGE, b"three")
    lease.release()


@pytest.mark.parametrize("name", ["best", own_name()])
@pytest.mark.parametrize("key", [b"/data/", b"/names/", b"/sessions/"])
def test_a_write_whose_reply_is_lost_is_there_once(
    object_server: ObjectServer, proxy: Proxy, name: str, key: bytes
) -> None:
    store = ObjectStore(object_server.at(f"lost-{name[:4]}-{key[1:5].decode()}", proxy.port))
    lease = store.acquire("s")
    put(store, name, "one", lease, size=LARGE)
    proxy.drop_next_reply(key)

    put(store, name, "two", lease, size=LARGE)

    assert read(store, name) == ("two", b"two" * LARGE, b"two")
    assert len(keys(store, "data")) == 1
    lease.release()


# --- processes -------------------------------------------------------------------------


def test_a_forked_child_is_told_and_does_not_hang(objects_url: str) -> None:
    program = f"""
import os
from graflow_ckpt.core.errors import CheckpointError, Fenced
from graflow_ckpt.stores.objects import ObjectStore
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


def test_who_was_fenced_writes_nothing(store: ObjectStore) -> None:
    old = store.acquire("s")
    put(store, "best", "one", old, size=LARGE)
    new = store.acquire("s", take_over=True)

    for name in (own_name(), "best", "never"):
        with pytest.raises(Fenced, match="taken over"):
            put(store, name, "late", old, size=LARGE)

    assert names(store) == ["best"]
    assert read(store, "best")[0] == "one"
    assert len(keys(store, "data")) == 1
    new.release()


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
    for look in (store.owner, store.lines, store.acquire, lambda session: list(store.list(session))):
        with pytest.raises(CheckpointCorrupt, match="is damaged"):
            look("bad")


@pytest.mark.parametrize(
    ("field", "value"),
    [("commits", []), ("commits", {"x": 1}), ("epoch", 1e999), ("epoch", -1), ("lines", [[1]]),
     ("segments", 7), ("announced", 7), ("owner", {"pid": "../x"}), ("owner", 7), ("seconds", {})],
)  # fmt: skip
def test_a_head_with_a_field_of_another_kind_is_damaged(store: ObjectStore, field: str, value: Any) -> None:
    said = json.loads(Head().encode()) | {field: value}
    store._all.bucket.swap(head_key("bad"), json.dumps(said).encode() + b"\n", None)

    with pytest.raises(CheckpointCorrupt, match="is damaged"):
        store.lines("bad")

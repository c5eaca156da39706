"""A bucket: paths and listings; refused, lost and back, or without conditions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Semaphore, Timer

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Sink
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores.drivers.objects import bucket as objects_bucket
from graflow_ckpt.stores.drivers.objects.bucket import Bucket, shown
from graflow_ckpt.stores.drivers.objects.names import is_objects, place_of, split
from graflow_ckpt.stores.drivers.objects.store import ObjectsDriver, ObjectStore, checked
from tests.object_servers import ObjectServer
from tests.proxy import Proxy
from tests.trios import all_of, content, held, put_holding
from tests.unit.stores.interruptions import happening
from tests.unit.stores.programs import printed
from tests.unit.stores.texts import keys, names, own_name, parts, put, read

CHUNK = ObjectsDriver.chunk
LARGE = 20_000  # times its text: more than what goes with the head


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


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
            with pytest.raises(errors.ServerTooOld, match="conditional writes"):
                call()
        with pytest.raises(errors.CheckpointError, match="conditional writes"):
            put(store, "best", "one")

        assert keys(store) == []


def test_a_refusal_says_so(objects_url: str) -> None:
    with ObjectServer(without="rights") as server:
        store = ObjectStore(server.url)
        for call in (store.probe, lambda: store.acquire("s"), lambda: store.meta("best")):
            with pytest.raises(errors.ServerRefuses, match="refuses"):
                call()
        with pytest.raises(errors.CheckpointError, match=r"Cannot write the checkpoint .*/best: .*refuses"):
            put(store, "best", "one")


def test_a_bucket_that_is_not_there_says_so(object_server: ObjectServer, objects_url: str) -> None:
    store = ObjectStore(objects_url.replace("://bucket/", "://no-such-bucket/"))

    for call in (store.probe, lambda: store.acquire("s"), lambda: list(store.list())):
        with pytest.raises(errors.ServerError, match="no such bucket"):
            call()


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(errors.ServerError, match="s3://bucket/x cannot be opened"):
        ObjectStore("s3://bucket/x?endpiont=http://h:1").probe()


def test_signatures_in_what_the_library_says_are_not_shown() -> None:
    said = "Error performing PUT https://u:hunter2@h/c/x?sig=hunter2&se=1 in 3s\n\nDebug source:\nhunter2"

    assert shown(said) == "Error performing PUT https://h/c/x in 3s"


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


def test_readers_wait_for_a_server_that_is_lost(object_server: ObjectServer, proxy: Proxy) -> None:
    store = ObjectStore(object_server.at("readers-wait", proxy.port))
    path = put(store, own_name(), "one", size=LARGE)
    asked: list[Callable[[], object]] = [
        lambda: names(store, "s"),
        lambda: names(store),
        lambda: store.meta(path),
        lambda: all_of(store.open(path, "pkl", "one")),
        lambda: store.bucket.now(),
    ]
    with ThreadPoolExecutor(len(asked)) as threads:
        proxy.refuse()
        Timer(0.6, proxy.resume).start()  # longer than the client itself goes on asking

        answers = [thread.result() for thread in [threads.submit(ask) for ask in asked]]

    assert all(answers)


def test_a_listing_that_is_cut_off_goes_on_where_it_was(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = store.bucket
    for letter in "abcde":
        bucket.put(f"x/{letter}", b"")
    pages = bucket._pages

    def cut_off(prefix: str, after: str | None) -> Iterator[Sequence[object]]:
        page = next(pages(prefix, after))
        yield page[:2]
        if len(page) > 2:
            raise errors.ServerGone("it went")

    monkeypatch.setattr(bucket, "_pages", cut_off)

    assert keys(store, "x") == [f"x/{letter}" for letter in "abcde"]


@pytest.fixture
def watched(proxy: Proxy, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket behind the proxy; that its server is silent is noticed soon."""
    monkeypatch.setattr(leases, "PATIENCE", 0)
    monkeypatch.setattr(objects_bucket, "WATCH", 0.02)
    monkeypatch.setitem(objects_bucket.QUICK, "read_timeout", timedelta(seconds=0.3))
    bucket = ObjectStore(object_server.at("watched", proxy.port)).bucket
    bucket.put("large", b"x" * CHUNK)
    return bucket


REQUESTS: list[Callable[[Bucket], object]] = [
    lambda bucket: bucket.put("large", b"y" * CHUNK),
    lambda bucket: bucket.get_range("large", 0, CHUNK),
]


@pytest.mark.parametrize("request_of", REQUESTS, ids=["put", "get"])
def test_what_is_large_may_take_its_time_while_the_server_answers(
    watched: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[Bucket], object]
) -> None:
    answered = Semaphore(0)
    be_there = watched._be_there
    monkeypatch.setattr(watched, "_be_there", lambda: (be_there(), answered.release()))
    proxy.hold_next_reply(b"large")

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(request_of, watched)
        for _ in range(20):  # which takes longer than something small is waited for
            assert answered.acquire(timeout=20)
        assert not done.done()
        proxy.resume()

        done.result()


@pytest.mark.parametrize("request_of", REQUESTS, ids=["put", "get"])
def test_what_is_large_is_given_up_when_the_server_answers_nothing(
    watched: Bucket, proxy: Proxy, request_of: Callable[[Bucket], object]
) -> None:
    proxy.stall()

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(request_of, watched)
        try:
            with pytest.raises(errors.ServerGone):
                done.result(timeout=60)  # half of what it could take
        finally:
            proxy.resume()


@pytest.mark.parametrize("name", ["best", own_name()])
def test_a_save_that_was_sent_and_not_confirmed_says_so_and_stays_whole(
    object_server: ObjectServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.1)
    store = ObjectStore(object_server.at(f"unknown-{name[:4]}", proxy.port))
    lease = store.acquire("s")
    put(store, name, "one", lease, size=LARGE)
    bucket = store.bucket
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
    with pytest.raises(errors.SaveOutcomeUnknown, match="was sent, but not confirmed"):
        store.put(name, [*others, ("meta.json", write_meta)], lease=lease, stage="two")
    monkeypatch.setattr(bucket, "swap", swap)
    proxy.resume()

    assert read(store, name) == ("two", b"two" * LARGE, b"two")
    put(store, name, "three", lease, size=LARGE)
    assert read(store, name) == ("three", b"three" * LARGE, b"three")
    lease.release()


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
    mine, other = store.bucket, ObjectStore(object_server.url).bucket

    assert mine._for(0) is other._for(0)
    assert mine._for(0) is not mine._for(1 << 23)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    assert ObjectStore(object_server.url).bucket._for(0) is not mine._for(0)


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
from tests.unit.stores.programs import printed
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
    lines = printed(program)

    assert [line.count("in use when this process was forked") for line in lines] == [1, 1, 1, 0, 0]
    assert "forked from its owner" in lines[-2]
    assert lines[-1] == "parent"


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
    with pytest.raises(errors.BadAddress) as bad:
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
        with pytest.raises(errors.CheckpointError, match="cannot be the name"):
            checked(name)


def test_what_leads_to_a_bucket() -> None:
    assert all(is_objects(path) for path in ("s3://b/x", "GS://b/x", "az://c/x", "azure://c/x", "gcs://b/x"))
    assert not any(is_objects(path) for path in ("redis://h/x", "s3", "/s3/x", "file:///s3"))

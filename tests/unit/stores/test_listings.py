"""Keyed stores as the layers above use them: paths, names, listings, and what a fork keeps.

Not here: what one kind of store alone has or refuses (test_sqlite.py and so on).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, ServerGone
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import keyed, open_store_of
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.servers import free_port
from tests.unit.stores.kinds import FORKING, InBucket, Kind, only
from tests.unit.stores.texts import names, own_name, parts, put, read

# --- paths and names ---------------------------------------------------------------------


def test_a_checkpoint_is_found_under_every_form_of_its_path(store: CheckpointStore, kind: Kind) -> None:
    put(store, "best.pkl", "one")

    for before in ("", f"{store.folder}/", f"{kind.address}/", kind.short):
        for path in (f"{before}best", f"{before}best.pkl", f"{before}best.state.json"):
            assert json.loads(store.meta(path))["stage"] == "one"
            assert store.open(path, "pkl", "one").size == 3


def test_a_path_alone_leads_back_to_its_store(store: CheckpointStore) -> None:
    path = put(store, "best", "one")

    assert read(open_store_of(path), path) == ("one", b"one", b"one")


def test_a_path_of_another_store_is_not_its_own(store: CheckpointStore, kind: Kind, tmp_path: Path) -> None:
    other = f"{store.folder}/best".replace(*kind.other)

    assert store.takes(f"{store.folder}/best") == store.takes(f"{store.folder}/best.pkl")
    for name in ("best", own_name()):
        assert store.takes(f"{store.folder}/{name}") == f"{store.folder}/{name}"
        if kind.short:
            assert store.takes(f"{kind.short}{name}") == f"{store.folder}/{name}"
    others = ["redis://h/0/best", "s3://other/best", "checkpoints/best.pkl", "file:///best.pkl", kind.short]
    if isinstance(kind, InBucket):
        others.append(f"{store.folder}/deeper/best")
    for path in (other, *others, store.folder):
        assert store.takes(path) is None
    with pytest.raises(CheckpointError, match=f"{other} is not in {store.folder}"):
        store.meta(other)
    for path in (f"{store.folder}/best", f"{kind.short or store.folder + '/'}best"):
        assert LocalStore(tmp_path).takes(path) is None
    assert LocalStore(tmp_path).takes("x/best.pkl") == "x/best.pkl"


# --- listings ----------------------------------------------------------------------------


def test_the_last_committed_is_listed_first_without_touching_values(
    store: CheckpointStore, kind: Kind
) -> None:
    for number in (1, 3, 2):
        put(store, own_name(number), f"n{number}", size=kind.large)
    kind.lose()

    assert names(store) == [own_name(2), own_name(3), own_name(1)]
    assert [json.loads(raw)["stage"] for _, raw in store.list()] == ["n2", "n3", "n1"]
    assert next(store.list())[0] == f"{store.folder}/{own_name(2)}"

    put(store, own_name(3), "again", size=kind.large)
    kind.lose()

    assert names(store) == [own_name(3), own_name(2), own_name(1)]
    assert [json.loads(raw)["stage"] for _, raw in store.list("s")] == ["again", "n2", "n1"]


def test_a_workflow_whose_name_has_no_encoding_is_kept_and_found(store: CheckpointStore) -> None:
    said = {"session_id": "s", "workflow": "night\udc80", "status": "failed"}
    meta = ("meta.json", lambda sink: sink.write(json.dumps(said).encode()))

    store.put(f"{store.folder}/best", [*parts("one")[:2], meta], lease=None, stage="one")

    ((path, raw),) = store.newest(5, workflow="night\udc80")
    assert (path, json.loads(raw)) == (f"{store.folder}/best", said)
    assert store.newest(5, workflow="night\udc81") == []


def test_more_metas_than_one_page_are_listed_once_each_while_others_come_and_go(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "_PAGE", 7)
    put(store, "best", "one")
    for number in range(40):
        put(store, own_name(number), "one")

    for session in (None, "s"):
        listing = store.list(session)
        first = [next(listing)[0] for _ in range(3)]
        put(store, own_name(1000), "new")
        put(store, "best", "again")  # it was among the oldest
        store.delete(own_name(1))
        rest = [path for path, _ in listing]

        found = [path.rpartition("/")[2] for path in first + rest]
        assert len(found) == len(set(found))
        assert {*found, own_name(1000)} - {own_name(1)} == set(names(store))
        assert "best" in found
        put(store, own_name(1), "one")
        for number in range(2, 40):
            put(store, own_name(number), "one")  # as before: `best` is among the oldest


def test_what_is_sealed_anew_while_it_is_listed_is_listed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "_PAGE", 7)
    for number in range(40):
        put(store, own_name(number), "one")
    listing = store.list()
    first = [next(listing)[0] for _ in range(3)]

    for number in (1, 2, 39):
        store.put(own_name(number), parts("one", note="anew")[-1:], lease=None, stage="one")
    put(store, own_name(1000), "new")

    found = [path.rpartition("/")[2] for path, _ in listing]
    assert sorted(found + [path.rpartition("/")[2] for path in first]) == sorted(map(own_name, range(40)))


def test_a_meta_that_is_gone_is_missed_or_listed_as_damaged(store: CheckpointStore, kind: Kind) -> None:
    path = put(store, own_name(), "one", note="x" * kind.chunk)  # too much for a head
    kind.driver.batch([], kind.listed())

    assert list(store.list("s")) == ([(path, b"")] if isinstance(kind, InBucket) else [])
    with pytest.raises(CheckpointCorrupt, match="lacks its meta"):
        store.meta(path)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["best", "bust", "b%st", own_name(1)]),
        ("best", ["best"]),
        ("b*", ["best", "bust", "b%st"]),
        ("b[e]st", ["best"]),
        ("b[!u]st", ["best", "b%st"]),
        ("b%st", ["b%st"]),
        ("b?st.pkl", ["best", "bust", "b%st"]),
        ("session_s_*", [own_name(1)]),
        ("none*", []),
    ],
)
def test_a_pattern_is_one_of_names(
    store: CheckpointStore, kind: Kind, pattern: str, found: list[str]
) -> None:
    for name in (own_name(1), "best", "bust", "b%st"):
        put(store, name, "one")

    in_redis = store.folder.startswith("redis://")  # where a "?" in an address begins its options
    for before in ("",) if in_redis and "?" in pattern else ("", f"{store.folder}/", kind.short):
        assert sorted(names(store, None, before + pattern)) == sorted(found)


# --- first use, and a fork ---------------------------------------------------------------


def test_probing_leaves_nothing_behind(store: CheckpointStore, kind: Kind) -> None:
    store.probe()

    assert kind.is_empty()


@pytest.mark.parametrize(
    ("kind_of_store", "where"),
    [
        (RedisStore, "redis://:hunter2@127.0.0.1:{}/0"),
        (PostgresStore, "postgresql://me:hunter2@127.0.0.1:{}/d?application_name=hunter3"),
        (ObjectStore, "s3://nobody/x?endpoint=http://127.0.0.1:{}"),
    ],
)
def test_nothing_is_asked_before_the_first_use_and_nothing_secret_is_told(
    kind_of_store: type[RedisStore | PostgresStore | ObjectStore], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter4")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter5")
    store = kind_of_store(where.format(free_port()))

    with pytest.raises(ServerGone) as gone:
        store.probe()

    held = vars(store) if isinstance(store, PostgresStore) else ""  # the other one connects with its address
    assert "hunter" not in f"{gone.value} {gone.value.ids} {store.url} {store.folder} {store!r} {held}"


@only(*FORKING)
def test_a_forked_child_goes_on_with_connections_of_its_own(kind: Kind) -> None:
    said = kind.run("""
put(store, "first", "parent")
pid = os.fork()
for n in range(30):
    who = "parent" if pid else "child"
    put(store, who, f"{who}{n}")
    assert read(store, f"{store.folder}/first")[0] == "parent"
if not pid:
    os._exit(0)
assert os.wait()[1] == 0
print(read(store, f"{store.folder}/parent")[0], read(store, f"{store.folder}/child")[0])
""")

    assert said == ["parent29 child29"]

"""What a tenant cannot do: list, load, delete, own or guess what another one has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store, store_of
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import (
    listed,
    meta_of,
    named,
    own_name,
    owning,
    path_of,
    put,
    put_meta,
    put_own,
    read,
    writer,
)


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore("memory://tenants-unit")
    store.forget()
    return store


@pytest.fixture
def a(inner: MemoryStore) -> Tenant:
    return Tenant(inner, "a")


@pytest.fixture
def b(inner: MemoryStore) -> Tenant:
    return Tenant(inner, "b")


def test_the_same_names_are_different_checkpoints(a: Tenant, b: Tenant) -> None:
    for name in ("best", own_name()):
        put(a, name, "of-a")
        put(b, name, "of-b")

    assert [read(store, path_of(store, "best")).stage for store in (a, b)] == ["of-a", "of-b"]
    assert [read(store, path_of(store, own_name())).stage for store in (a, b)] == ["of-a", "of-b"]
    assert a.delete(path_of(a, "best")) is True
    assert read(b, path_of(b, "best")).stage == "of-b"
    assert listed(a) == [named(own_name())]


def test_the_same_session_has_two_owners_and_two_journals(a: Tenant, b: Tenant) -> None:
    with owning(a) as of_a, owning(b) as of_b:
        a.journal(of_a, 0).append(b"of a;")
        b.journal(of_b, 0).append(b"of b;")

        assert [raw for _, _, raw in a.segments("s")] == [b"of a;"]
        assert [raw for _, _, raw in b.segments("s")] == [b"of b;"]
    with pytest.raises(TypeError, match="tenant"):
        b.journal(of_a, 1)


@pytest.mark.parametrize(
    "guess",
    ["a-best", "../a-best", "session_a-s_step_1_1700000000-1.pkl", "session_s_step_1_1700000000-1.pkl",
     "-best", "best", "a-", "*", "a-*", "[a]-best", "%2e%2e/a-best", "a-best.meta.json"],
)  # fmt: skip
def test_no_name_leads_to_what_another_tenant_has(a: Tenant, b: Tenant, guess: str) -> None:
    put(a, "best", "of-a")
    put(a, own_name(), "of-a")

    for path in (f"{b.folder}/{guess}", guess):
        for ask in (b.meta, b.delete):
            try:
                assert ask(path) is False
            except errors.CheckpointError as error:
                assert "of-a" not in str(error)  # noqa: PT017  either is an answer
        assert list(b.list(None, path)) == []
    for session in ("s", "a-s"):
        assert list(b.list(session)) == []
        assert b.owner(session) is None
    assert list(b.list()) == []
    assert len(listed(a)) == 2


@pytest.mark.parametrize("names", [("a", "ab"), ("a", "a1"), ("s", "session")])
def test_tenants_whose_names_are_alike_do_not_meet(inner: MemoryStore, names: tuple[str, str]) -> None:
    one, two = (Tenant(inner, name) for name in names)
    for session in ("s", "b-s", "1-s", "ession_s", "s-s"):
        with owning(one, session) as lease:
            put_own(one, lease, 1)
            assert two.owner(session) is None
        put(one, session, "one")

    assert listed(two) == []
    assert len(listed(one)) == 10


def test_the_path_of_another_tenant_is_refused(a: Tenant, b: Tenant) -> None:
    path = put(a, "best", "of-a")

    assert path.startswith("tenant.a+memory://")
    assert b.takes(path) is None
    with pytest.raises(errors.CheckpointError, match="is not in"):
        b.meta(path)
    assert b.takes("memory://tenants-unit/a-best") is None


def test_a_trio_that_was_moved_to_another_tenant_is_refused(inner: MemoryStore, a: Tenant, b: Tenant) -> None:
    put(a, "best", "of-a")
    stolen = inner.meta(f"{inner.folder}/a-best")
    inner.put(f"{inner.folder}/b-best", [("meta.json", writer(stolen))], lease=None, stage="x")
    put(inner, "b-plain", "one")

    for name in ("best", "plain"):
        with pytest.raises(errors.UnsafeCheckpoint, match="tenant b"):
            b.meta(path_of(b, name))
    assert {raw for _, raw in b.list()} == {b""}


def test_whoever_looks_at_the_whole_store_sees_two_sessions(inner: MemoryStore, a: Tenant, b: Tenant) -> None:
    for store in (a, b):
        put(store, "best", "one", session="s")

    assert {json.loads(raw)["session_id"] for _, raw in inner.list()} == {"a-s", "b-s"}
    assert listed(inner, "a-s") == ["a-best"]
    assert listed(inner, "s") == []


def test_among_many_of_others_its_own_newest_are_found(inner: MemoryStore, a: Tenant, b: Tenant) -> None:
    put(a, "old", "one")
    for number in range(200):
        put_meta(b, f"n{number}", meta_of("one"))

    for limit in (1, 5, 2**62):
        assert [named(path) for path, _ in a.newest(limit)] == ["old"]
    assert len(b.newest(150)) == 150
    assert list(Tenant(inner, "c").newest(1)) == list(a.newest(0)) == []


def test_a_changed_envelope_is_corrupt(inner: MemoryStore, a: Tenant) -> None:
    path = put(a, "best", "one")
    document = json.loads(inner.meta(f"{inner.folder}/a-best"))
    body = {**document["tenant"], "meta": 1}
    for changed in ({**document, "session_id": "a-t"}, {**document, "tenant": body}):
        raw = json.dumps(changed).encode()
        inner.put(f"{inner.folder}/a-best", [("meta.json", writer(raw))], lease=None, stage="one")

        with pytest.raises(errors.CheckpointCorrupt):
            a.meta(path)


def test_who_is_busy_is_told_by_the_names_of_the_tenant(a: Tenant) -> None:
    with owning(a), pytest.raises(errors.SessionBusy) as busy:
        a.acquire("s")

    assert busy.value.ids["session"] == "s"
    assert "a-s" not in str(busy.value)


def test_a_session_id_has_to_leave_room_for_the_tenant(inner: MemoryStore) -> None:
    store = Tenant(inner, "x" * 20)

    store.acquire("s" * 43).release()
    for ask in (store.acquire, store.owner):
        with pytest.raises(errors.BadSessionId, match="too long for tenant"):
            ask("s" * 44)
    for session in ("s" * 44, "s" * 64):
        for folder in ("memory://elsewhere", "redis://h:1/0", "/srv/runs", store.folder):
            assert store.takes(f"{folder}/{own_name(session)}") is None


@pytest.mark.parametrize("name", ["", "A", "a-b", "a_b", "a.b", "x" * 21, "a/b", "é", "a\n"])
def test_what_cannot_be_the_name_of_a_tenant_is_refused(inner: MemoryStore, name: str) -> None:
    with pytest.raises(errors.CheckpointError, match="name of a tenant"):
        Tenant(inner, name)


def test_an_address_names_the_tenant() -> None:
    store = open_store("tenant.acme+memory://tenants-unit")

    assert store.url == store_of(path_of(store, "best")) == "tenant.acme+memory://tenants-unit"
    with pytest.raises(errors.CheckpointError, match="name of a tenant"):
        open_store("tenant+memory://tenants-unit")


def test_in_folders_with_odd_names_and_inside_other_wrappers_it_lists_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "odd [1]*"
    stores: list[CheckpointStore] = [Tenant(LocalStore(folder), "a"), Tenant(LocalStore(folder), "b")]
    stores.append(open_store(f"tenant.a+compressed+file://{folder}/c"))
    for store in stores:
        with owning(store) as lease:
            put_own(store, lease, 1)
        put(store, "best", "one")

    for store in stores:
        assert sorted(listed(store)) == sorted(listed(store, "s")) == ["best", named(own_name())]


def test_what_is_not_there_is_not_found_under_the_tenants_name(a: Tenant) -> None:
    with pytest.raises(errors.CheckpointNotFound):
        a.meta(path_of(a, "best"))
    assert json.loads(meta_of("one"))["session_id"] == "s"

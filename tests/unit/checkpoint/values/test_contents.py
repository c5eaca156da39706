"""Contents: what did not change costs a digest, whatever it lies in, and comes back as what it was."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import Allowance
from graflow_ckpt.checkpoint.care.copying import Move
from graflow_ckpt.checkpoint.care.inventory import audit, inventory
from graflow_ckpt.checkpoint.care.pruning import Guard, carry_out, plan
from graflow_ckpt.checkpoint.retention import KeepLast, KeepWithin, OfAll, bytes_of
from graflow_ckpt.checkpoint.values import contents
from graflow_ckpt.checkpoint.values.digest import CHUNK
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, TooLarge
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.contents import KeyedSaving
from graflow_ckpt.stores.files.store import LocalStore
from tests import things
from tests.servers import Server
from tests.trios import all_of, own_name
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.kept import KINDS, InObjects, InRedis, InSqlite, Kept
from tests.unit.checkpoint.trios import RING

A, B = own_name("s", 1), own_name("s", 2)  # checkpoints of one session have contents in common


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(params=[*KINDS, InRedis])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    kind: type[Kept] = request.param
    if kind is InRedis:
        kind = InRedis.of(request.getfixturevalue("server").url)
    return kind(tmp_path)


@pytest.fixture
def store(kept: Kept) -> CheckpointStore:
    return kept.store


@dataclass
class Model:
    weights: np.ndarray[Any, Any]
    name: str


class Frozen:
    """Its state has bytes inside that nobody sees from outside."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (bytes(bytearray(self.blob)),)


def array(seed: int, size: int = 100_000) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8)


def save(
    store: CheckpointStore, name: str, allowance: Allowance | None = None, sequence: int = 1, **values: Any
) -> archive.Found:
    cells = {key: value if isinstance(value, bytes) else Live(value) for key, value in values.items()}
    state = trios.state("s", *(("put", key, cell, -1) for key, cell in cells.items()))
    saved = trios.save(
        Path(), of=state, path=f"{store.folder}/{name}", store=store, allowance=allowance, sequence=sequence
    )
    return archive.find(store, RING, saved.path)


def load(store: CheckpointStore, name: str) -> dict[str, Any]:
    _, context = archive.load(store, RING, f"{store.folder}/{name}")
    payload: dict[str, Any] = context.payload
    return payload["plain"] | payload["live"]


def test_arrays_in_dicts_lists_and_dataclasses_are_shared_and_come_back_writable(
    store: CheckpointStore, kept: Kept
) -> None:
    model = Model(array(3), "m")
    first = save(store, A, x={"k": [array(1), array(2)], "m": model})
    second = save(store, B, other=[Model(array(3), "n"), array(2)])

    found = load(store, A)["x"]

    assert kept.stored() == [100_000] * 3
    assert {saved.meta["parts"]["pkl"]["size"] for saved in (first, second)} < set(range(10_000))
    assert (found["m"].weights == array(3)).all()
    found["k"][0][0] = 1  # it is the reader's own
    assert (load(store, B)["other"][1] == array(2)).all()


def test_one_object_under_two_names_is_stored_once_and_is_one_object_again(
    store: CheckpointStore, kept: Kept
) -> None:
    shared = array(1)

    save(store, A, x=shared, y={"also": shared})

    found = load(store, A)
    assert found["x"] is found["y"]["also"]
    assert kept.stored() == [100_000]


def test_large_plain_values_bytearrays_and_texts_are_shared_with_their_types(
    store: CheckpointStore, kept: Kept
) -> None:
    plain, text = bytes(array(1)), "äö" * 50_000

    for name in (A, B):
        save(store, name, x=b"\xc6" + plain, y=[bytearray(plain), text])

    found = load(store, B)
    assert type(found["x"]) is bytes
    assert found["x"] == b"\xc6" + plain
    assert found["y"] == [bytearray(plain), text]
    assert type(found["y"][0]) is bytearray
    assert len(kept.stored()) == 3


def test_bytes_that_an_object_makes_of_itself_are_shared(store: CheckpointStore, kept: Kept) -> None:
    for name in (A, B):
        save(store, name, x=Frozen(bytes(array(1))))

    assert kept.stored() == [100_000]
    assert load(store, A)["x"].blob == bytes(array(1))


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_a_content_of_several_chunks_is_digested_by_chunk(store: CheckpointStore, size: int) -> None:
    found = save(store, A, x=array(1, size))

    (entry,) = found.meta["contents"]

    assert entry["size"] == size
    assert len(entry.get("chunks", [1])) == -(-size // CHUNK)
    assert (load(store, A)["x"] == array(1, size)).all()


def test_small_values_stay_in_the_pickle_which_is_then_a_plain_one(
    store: CheckpointStore, kept: Kept
) -> None:
    found = save(store, A, **{f"x{n}": array(n, 60_000) for n in range(20)})

    assert "contents" not in found.meta
    assert kept.stored() == []
    assert pickle.loads(all_of(store.open(found.path, "pkl", found.stage))).session_id == "s"


def test_more_contents_than_a_meta_can_list_stay_in_the_pickle(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MOST", 3)

    found = save(store, A, x=[array(n) for n in range(5)])

    assert len(found.meta["contents"]) == 3
    assert all((one == array(n)).all() for n, one in enumerate(load(store, A)["x"]))


def test_payloads_are_looked_up_in_batches(
    store: CheckpointStore, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "BATCH", 250_000)

    save(store, A, x=[array(n % 4) for n in range(10)])

    assert kept.stored() == [100_000] * 4
    assert all((one == array(n % 4)).all() for n, one in enumerate(load(store, A)["x"]))


def test_what_is_left_and_the_contents_make_the_plain_pickle(store: CheckpointStore) -> None:
    found = save(store, A, x=[array(1), "text", array(2)])

    source = archive.whole_values(store, found)
    pieces = []
    while count := source.readinto(memoryview(buffer := bytearray(7_001))):
        pieces.append(bytes(buffer[:count]))

    assert source.size == sum(map(len, pieces))
    assert (pickle.loads(b"".join(pieces)).payload["live"]["x"][2] == array(2)).all()


def test_a_content_that_was_changed_is_found_before_it_is_opened_and_not_held_again(
    store: CheckpointStore, kept: Kept
) -> None:
    save(store, A, x=array(1))
    kept.damage()

    with pytest.raises(CheckpointCorrupt, match="content"):
        load(store, A)

    save(store, B, x=array(1))
    assert (load(store, B)["x"] == array(1)).all()
    with pytest.raises(CheckpointCorrupt):
        archive.check(store, RING, f"{store.folder}/{A}")


def test_what_was_sent_and_is_gone_at_the_commit_is_told(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = KeyedSaving.settle

    def lost(saving: KeyedSaving) -> None:
        things.drop(store, things.keys_of_contents(store))
        settle(saving)

    monkeypatch.setattr(KeyedSaving, "settle", lost)

    with pytest.raises(CheckpointError, match="sent before"):
        save(store, A, x=array(1))

    assert list(store.list()) == []


def test_a_value_that_is_changed_while_it_is_saved_is_saved_as_it_was_in_one_moment(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, other = array(1), array(2)
    digests = contents._digests

    def then_changed(payloads: Any) -> Any:
        found = list(digests(payloads))
        value[0] ^= 1
        return found

    monkeypatch.setattr(contents, "_digests", then_changed)

    save(store, A, x=[value, other])

    archive.check(store, RING, f"{store.folder}/{A}")
    found = load(store, A)["x"]
    assert (found[0][1:] == value[1:]).all()
    assert (found[1] == other).all()


def test_a_meta_that_says_something_else_of_its_contents_is_refused(store: CheckpointStore) -> None:
    found = save(store, A, x=[array(1), array(2)])
    first, second = found.meta["contents"]

    for wrong in (
        [second, first],
        [first | {"size": "100000"}, second],
        [first | {"chunks": [second["name"]]}, second],
        [{"at": 1}],
        "no list",
        [first | {"size": 0}],
    ):
        with pytest.raises(CheckpointCorrupt):
            contents.contents_of("p", {"contents": wrong})


def test_copied_to_a_store_that_shares_it_is_the_same_and_its_contents_are_there_once(
    store: CheckpointStore, kept: Kept, tmp_path: Path
) -> None:
    large = array(7, 2 * CHUNK + 9)
    found = [save(store, name, x=[array(1), large]) for name in (A, B)]
    other = type(kept)(tmp_path / "other")
    move = Move(store, other.store, RING, RING)

    copied = [move.cut(one.path) for one in found]
    again = move.cut(found[0].path)

    assert [one.state for one in (*copied, again)] == ["copied", "copied", "there"]
    assert other.stored() == sorted([100_000, 2 * CHUNK + 9])
    there = archive.find(other.store, RING, copied[1].target)
    assert [there.meta[name] for name in ("parts", "contents")] == [
        found[1].meta[name] for name in ("parts", "contents")
    ]
    assert (load(other.store, A)["x"][1] == large).all()


def test_copied_to_a_store_that_does_not_share_it_is_a_plain_pickle_and_back_it_is_shared_no_more(
    store: CheckpointStore, tmp_path: Path
) -> None:
    found = save(store, A, x=[array(1), array(2)])
    plain = LocalStore(tmp_path / "plain")
    move = Move(store, plain, RING, RING)

    copied = move.cut(found.path)

    assert copied.state == "copied"
    assert move.cut(found.path).state == "there"
    with open(copied.target, "rb") as file:
        assert (pickle.load(file).payload["live"]["x"][1] == array(2)).all()
    assert "contents" not in archive.check(plain, RING, copied.target)[0].meta


def test_copied_to_a_bucket_and_back_a_session_shares_what_it_shared(
    objects_url: str, tmp_path: Path
) -> None:
    first, bucket, last = InSqlite(tmp_path), InObjects.of(objects_url)(tmp_path), InSqlite(tmp_path / "last")
    for number in (1, 2):
        own = f"session_s_step_1_1700000000-{number}"
        save(first.store, own, sequence=number, x=[array(1), array(10 + number)])

    for origin, target in ((first, bucket), (bucket, last)):
        done = Move(origin.store, target.store, RING, RING).session("s")
        assert done.error is None
        assert target.stored() == [100_000] * 3

    for number in (1, 2):
        found = load(last.store, f"session_s_step_1_1700000000-{number}.pkl")
        assert (found["x"][1] == array(10 + number)).all()


def test_a_content_that_is_damaged_in_a_bucket_is_found_and_stored_anew_by_the_next_save(
    objects_url: str, tmp_path: Path
) -> None:
    bucket = InObjects.of(objects_url)(tmp_path)
    first, second = (f"session_s_step_1_1700000000-{number}.pkl" for number in (1, 2))
    found = save(bucket.store, first, x=array(1))
    assert audit(bucket.store).orphans == ()
    bucket.damage()

    with pytest.raises(CheckpointCorrupt):
        load(bucket.store, first)
    save(bucket.store, second, sequence=2, x=array(1))

    assert (load(bucket.store, second)["x"] == array(1)).all()
    assert bucket.stored() == [100_000] * 2  # the damaged one is the first one's
    bucket.store.delete(found.path)
    assert bucket.stored() == [100_000]
    assert audit(bucket.store).orphans == ()


def test_a_damaged_content_is_not_copied(store: CheckpointStore, kept: Kept, tmp_path: Path) -> None:
    found = save(store, A, x=array(1))
    kept.damage()
    other = type(kept)(tmp_path / "other").store

    for target in (other, LocalStore(tmp_path / "plain")):
        with pytest.raises(CheckpointCorrupt):
            Move(store, target, RING, RING).cut(found.path)
        assert list(target.list()) == []


def test_what_is_shared_counts_in_what_a_checkpoint_may_take(store: CheckpointStore, kept: Kept) -> None:
    save(store, A, x=[array(1), array(2)])
    allowance = Allowance(limit=150_000)

    with pytest.raises(TooLarge, match="exceeds limit"):
        save(store, B, allowance, x=[array(1), array(2)])

    assert len(list(store.list())) == 1
    assert kept.stored() == [100_000] * 2


def test_a_wrapper_that_leaves_bytes_alone_reads_what_is_shared(tmp_path: Path) -> None:
    plain = open_store(f"sqlite:///{tmp_path}/runs.db")
    around = open_store(f"retry+sqlite:///{tmp_path}/runs.db")
    save(plain, A, x=[array(1), array(2)])

    save(around, B, x=[array(1), array(2)])

    assert (load(around, A)["x"][1] == array(2)).all()
    assert (load(around, B)["x"][1] == array(2)).all()
    assert "contents" not in json.loads(around.meta(B))
    around.delete(A)
    assert (load(around, B)["x"][1] == array(2)).all()


@pytest.mark.parametrize("word", ["tenant.me", "retry", "encrypted+retry"])
def test_behind_a_wrapper_that_changes_names_or_repeats_calls_nothing_is_shared(
    tmp_path: Path, word: str
) -> None:
    around = open_store(f"{word}+sqlite:///{tmp_path}/runs.db")

    save(around, B, x=[array(1), array(2)])

    assert (load(around, B)["x"][1] == array(2)).all()
    assert InSqlite(tmp_path).stored() == []


def test_a_budget_counts_what_is_shared_once(store: CheckpointStore) -> None:
    for number in range(4):
        save(store, own_name("s", number + 1), sequence=number + 1, x=[array(1), array(10 + number)])
    cuts = inventory(store).cuts

    small = bytes_of(cuts) - 5 * 100_000
    assert 0 < small < 100_000
    assert len(KeepWithin(kb=350).keeps(cuts, 0.0)) == 2  # the one in common, and one of each
    assert len(KeepWithin(kb=600).keeps(cuts, 0.0)) == 4


def test_what_is_counted_is_what_is_stored(store: CheckpointStore, kept: Kept) -> None:
    for name in (own_name("s"), own_name("t"), "best"):  # a store may share within a session only
        save(store, name, x=array(1))

    stored = sum(kept.stored())

    assert stored < inventory(store).size < stored + 50_000


def test_what_pruning_frees_is_what_nobody_else_holds(store: CheckpointStore) -> None:
    for number in range(3):
        save(store, own_name("s", number + 1), sequence=number + 1, x=[array(1), array(10 + number)])
    known = inventory(store)
    guard = Guard(store, known, lambda: RING)

    what = plan(guard, OfAll(KeepLast(1)), 0.0)

    assert len(what.cuts) == 2
    assert 200_000 < what.size < 250_000
    assert carry_out(store, what).size == what.size

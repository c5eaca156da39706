"""The history of a session: its newest cut, the records that follow it, and the state that both make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import history, journal
from graflow_ckpt.checkpoint.archive import Found, load
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.checkpoint.snapshot import Snapshot, capture, preview, restore
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import CheckpointCorrupt, JournalDamaged, UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import owning
from tests.unit.checkpoint import stocked, trios
from tests.unit.checkpoint.trios import RING
from tests.unit.core.histories import Record, dump, histories, kept, run, transitions


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def cut(store: LocalStore, sequence: int, epoch: int = 1, session: str = "s") -> Path:
    name = f"session_{session}_step_0_17-{sequence}.pkl"
    return Path(trios.save(Path(store.folder), name, session=session, sequence=sequence, epoch=epoch).path)


def newest(store: LocalStore, session: str = "s", ring: Keyring = RING) -> list[tuple[int, str]]:
    """Sequence numbers, and of bad ones the kind of error."""
    return [
        (int(Path(path).stem.rpartition("-")[2]), "" if isinstance(found, Found) else type(found).__name__)
        for path, found in history.newest(store, ring, session)
    ]


# --- cuts ------------------------------------------------------------------------------


def test_cuts_come_newest_first_by_epoch_and_then_by_sequence(store: LocalStore) -> None:
    for sequence, epoch in ((1, 1), (4, 1), (2, 2), (3, 2)):
        cut(store, sequence, epoch)
    cut(store, 9, session="t")

    assert newest(store) == [(3, ""), (2, ""), (4, ""), (1, "")]


def test_what_an_owner_has_gone_back_behind_does_not_count(store: LocalStore) -> None:
    for sequence in (1, 2, 3):
        cut(store, sequence, epoch=1)
    rewound = stocked.save(store, "s", 4, epoch=2, rewinds=[[2, 1]])

    assert newest(store) == [(4, ""), (1, "")]
    stocked.save(store, "s", 5, epoch=2, rewinds=[[2, 1]])
    assert store.delete(rewound.path)  # what follows it says the same
    assert newest(store) == [(5, ""), (1, "")]


def test_a_damaged_rewind_supersedes_as_long_as_its_meta_is_sealed(store: LocalStore) -> None:
    for sequence in (1, 2):
        cut(store, sequence, epoch=1)
    rewound = stocked.save(store, "s", 3, epoch=2, rewinds=[[2, 1]])
    Path(rewound.path.replace(".pkl", ".state.json")).write_bytes(b"damaged")

    assert newest(store) == [(3, "CheckpointCorrupt"), (1, "")]
    meta = Path(rewound.path.replace(".pkl", ".meta.json"))
    meta.write_text(meta.read_text().replace('"rewinds":[[2,1]]', '"rewinds":[[2,0]]'))
    assert newest(store) == [(3, "UnsafeCheckpoint"), (2, ""), (1, "")]


def test_bad_ones_are_mentioned_where_they_stand(store: LocalStore) -> None:
    for sequence in (1, 2, 3):
        cut(store, sequence)
    cut(store, 2).with_suffix(".state.json").unlink()
    cut(store, 1).with_suffix(".meta.json").write_text("{")

    assert newest(store) == [(1, "CheckpointCorrupt"), (3, ""), (2, "CheckpointCorrupt")]
    assert str(history.newest_path(store, RING, "s")).endswith("-3.pkl")


def test_a_copy_of_another_session_under_this_ones_name_is_not_its_and_is_mentioned_first(
    store: LocalStore,
) -> None:
    other = cut(store, 7, session="t")
    for part in (".pkl", ".state.json", ".meta.json"):
        other.with_suffix(part).rename(other.with_name(f"session_s_step_0_17-1{part}"))
    cut(store, 9)

    assert newest(store) == [(1, "UnsafeCheckpoint"), (9, "")]
    _, error = next(history.newest(store, RING, "s"))
    assert isinstance(error, UnsafeCheckpoint)
    assert (error.session, error.other) == ("s", "t")


def test_the_newest_good_one_may_be_asked_for_beside_another(store: LocalStore) -> None:
    first, second = cut(store, 1), cut(store, 2)

    assert history.newest_path(store, RING, "s", str(second)) == str(first)
    assert history.newest_path(store, RING, "nobody") is None


def test_a_damaged_one_points_to_the_newest_good_one(store: LocalStore, tmp_path: Path) -> None:
    first, second = cut(store, 1), cut(store, 2)
    words = f"The newest good checkpoint of session s is {first}."

    assert history.beside_damaged(store, RING, str(second)) == words
    second.with_suffix(".meta.json").write_text("[" * 100_000)
    assert history.beside_damaged(store, RING, str(second)) == words  # by the name of the file
    nameless = Path(trios.save(tmp_path, "mine.pkl").path)
    nameless.with_suffix(".meta.json").write_text("[]")
    assert history.beside_damaged(store, RING, str(nameless)).startswith("No other good checkpoint")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"{}", b'{"epoch": 1}', b'{"epoch": 1e999, "sequence": 1}', b"[" * 100_000]
)
def test_a_meta_that_says_nothing_is_looked_at_first(store: LocalStore, raw: bytes) -> None:
    good = cut(store, 5, epoch=3).with_suffix(".meta.json").read_bytes()

    assert history.order_of(raw) > (10**9, -1)
    assert history.order_of(good) == (3, 5)


def test_none_good_names_the_first_reasons_and_what_to_do() -> None:
    bad = [(f"{n}.pkl", CheckpointCorrupt(f"reason {n}")) for n in range(5)]

    error = history.none_good("s", list(bad))

    assert "Session s has 5 checkpoints and none of them verifies: 0.pkl: reason 0; 1.pkl" in str(error)
    assert "reason 3" not in str(error)
    assert "checkpoints verify" in error.hint


def test_if_only_the_key_is_missing_the_hint_is_how_to_get_it(store: LocalStore) -> None:
    cut(store, 1)
    ((path, error),) = history.newest(store, Keyring({"k2": b"2" * 32}), "s")

    assert isinstance(error, UnknownKey)
    assert "GRAFLOW_CKPT_KEY" in history.none_good("s", [(path, error)]).hint


# --- journal ---------------------------------------------------------------------------


def write(store: LocalStore, lease: Lease, after: int, *numbers: int, live: bool = False) -> None:
    """Records that each set x to their number."""
    segment = store.journal(lease, after)
    writer = journal.Writer(RING, "s", lease.epoch, after)
    segment.append(writer.head)
    for number in numbers:
        value = Live(slice(number)) if live else bytes([number])
        ops: list[Op] = [("put", "x", value, -1)]
        segment.append(writer.frame(journal.pack(number, 0.0, ops)))
    segment.close()


def opened(store: LocalStore, path: Path) -> tuple[Found, SessionState]:
    found, context = load(store, RING, str(path))
    return found, restore(found.facts, context.payload)


def test_records_after_the_cut_are_applied(store: LocalStore) -> None:
    with owning(store) as lease:
        found, state = opened(store, cut(store, 1, lease.epoch))
        assert state.sequence == 1
        write(store, lease, 0, 1, 2)  # from before the cut on
        write(store, lease, 2, 3)

    assert history.replay(store, RING, state, found, "s") == 2
    assert (state.sequence, state.values["x"][0]) == (3, b"\x03")


def test_a_session_that_was_never_cut_is_replayed_from_its_beginning(store: LocalStore) -> None:
    with owning(store) as lease:
        write(store, lease, 0, 1, 2)
    state = SessionState("s")

    assert history.replay(store, RING, state, None, "s") == 2


def test_what_a_later_owner_did_not_have_is_void(store: LocalStore) -> None:
    with owning(store) as first:
        found, state = opened(store, cut(store, 1, first.epoch))
        write(store, first, 1, 2, 3, 4)
    with owning(store) as second:
        write(store, second, 2, 3)

    assert history.replay(store, RING, state, found, "s") == 2
    assert state.sequence == 3


def test_records_of_before_the_cuts_owner_are_left_alone(store: LocalStore) -> None:
    with owning(store) as first:
        write(store, first, 1, 2, 3)
    with owning(store) as second:
        found, state = opened(store, cut(store, 1, second.epoch))

    assert history.replay(store, RING, state, found, "s") == 0


def test_a_record_that_is_missing_is_damage(store: LocalStore) -> None:
    with owning(store) as lease:
        found, state = opened(store, cut(store, 1, lease.epoch))
        write(store, lease, 2, 3)

    with pytest.raises(JournalDamaged, match="record 2 is missing"):
        history.replay(store, RING, state, found, "s")


def test_a_closed_replay_opens_no_pickle(store: LocalStore) -> None:
    with owning(store) as lease:
        found, state = opened(store, cut(store, 1, lease.epoch))
        write(store, lease, 1, 2, live=True)

    assert history.replay(store, RING, state, found, "s", closed=True) == 1
    cell = state.values["x"][0]
    assert isinstance(cell, Live)
    assert cell.value is None


def test_a_number_that_nobody_reaches_is_damage_and_counts_for_nothing(store: LocalStore) -> None:
    """Somebody who can write there would have the session count on from it, to where no number is left."""
    cut(store, 1)
    changed = cut(store, 2).with_suffix(".meta.json")
    changed.write_text(changed.read_text().replace('"sequence":2', f'"sequence":{2**64}'))

    assert newest(store) == [(2, "UnsafeCheckpoint"), (1, "")]
    assert max(history.order_of(raw)[1] for _, raw in store.list("s")) == 1
    assert [found.path for found in inventory(store).unreadable] == [str(changed).replace("meta.json", "pkl")]


# --- snapshots ------------------------------------------------------------------------


def through_files(snapshot: Snapshot) -> SessionState:
    facts = json.loads(json.dumps(snapshot.facts))
    return restore(facts, snapshot.payload())


@given(histories())
def test_what_was_captured_is_restored(history: list[Record]) -> None:
    state = run(history)
    before = dump(state)

    back = through_files(capture(state))

    assert kept(back) == kept(state)
    assert dump(state) == before


@given(histories(), st.data())
def test_a_restored_state_goes_on_as_the_one_before_would_have(
    history: list[Record], data: st.DataObject
) -> None:
    state = run(history)
    back = through_files(capture(state))
    now = history[-1][0]
    for _ in range(data.draw(st.integers(1, 5))):
        now += 1.0
        ops = [_blind(op) for op in data.draw(transitions(state, now))]

        claims, again = apply(state, ops, now), apply(back, ops, now)

        assert again == claims
        assert kept(back) == kept(state)


def _blind(op: Op) -> Op:
    return (*op[:3], -1) if op[0] == "put" else op  # versions begin anew


@given(histories())
def test_a_snapshot_is_not_changed_by_what_comes_after_it(history: list[Record]) -> None:
    state = run(history)
    snapshot = capture(state)
    before = json.dumps(snapshot.facts), repr(snapshot.payload())

    apply(state, [("append", "x", b"\x01"), ("enqueue", "b", None, 0, 0, "default", "direct")], 0.0)
    apply(state, [("clear",), ("again", "a", "b"), ("status", "closing", "no")], 0.0)

    assert (json.dumps(snapshot.facts), repr(snapshot.payload())) == before


# --- what is in which file -------------------------------------------------------------


def state_with(*ops: Op) -> SessionState:
    state = SessionState("s", ("a",))
    apply(state, ops, 0.0)
    return state


def enqueue(task: str = "a", data: Any = None) -> Op:
    return ("enqueue", task, data, 0, 0, "default", "direct")


def test_live_values_and_task_data_are_in_the_pickle_and_referred_to() -> None:
    model = object()
    state = state_with(
        ("put", "plain", b"\x05", -1),
        ("put", "live", Live(model), -1),
        ("append", "list", Live(model)),
        enqueue("a", b"\x07"),
        enqueue("b", Live(model)),
        enqueue("c"),
    )

    snapshot = capture(state)
    payload = snapshot.payload()

    assert payload["plain"] == {"plain": b"\x05", "list": b"\x90"}
    assert payload["live"] == {"live": model}
    assert payload["appended"] == {"list": [("live", model)]}
    assert payload["data"] == [("plain", b"\x07"), ("live", model)]
    data = [spec["task_data"] for spec in snapshot.facts["pending_tasks"]]
    assert data == [{"ref": 0, "type": "plain", "size": 1}, {"ref": 1, "type": "builtins.object"}, None]


def test_the_facts_have_what_the_format_promises() -> None:
    state = state_with(enqueue(), ("claim", 1))
    (key, number) = next(iter(state.claimed.items()))
    again = enqueue("a")
    apply(state, [("end", key, number, "completed", b"\xc0"), again, again, ("claim", 1)], 0.0)

    facts = capture(state, begun=state.claimed).facts

    assert facts["schema_version"] == "1.0"
    assert (facts["session_id"], facts["start_node"], facts["steps"]) == ("s", "a", 1)
    assert facts["completed_tasks"] == ["a"]
    assert facts["cycle_counts"] == {"a": 2}
    assert [spec["status"] for spec in facts["pending_tasks"]] == ["running", "pending"]
    claimed_only = capture(state).facts["pending_tasks"]
    assert [spec["status"] for spec in claimed_only] == ["pending", "pending"]
    assert facts["backend"] == {"queue": "memory", "channel": "memory"}


def test_a_failed_task_is_pending_with_its_error() -> None:
    state = state_with(enqueue(), ("claim", 1))
    apply(state, [("end", 1, 1, "failed", "E: no"), ("status", "failing", "E: no"), ("claim", 1)], 0.0)

    (spec,) = capture(state).facts["pending_tasks"]

    assert (spec["status"], spec["error"]) == ("failed", "E: no")


def test_a_retry_that_is_due_stays_where_it_stands_in_the_queue() -> None:
    state = state_with(enqueue("a"), ("claim", 1))
    apply(state, [("end", 1, 1, "retry", 0.0, "E: no"), enqueue("b")], 0.0)

    back = through_files(capture(state))

    assert back.delayed == []
    assert [one.spec.task_id for one in apply(back, [("claim", 2)], 0.0)] == ["a", "b"]


def test_random_state_that_is_given_is_newer_than_the_one_in_the_state() -> None:
    state = state_with(("rng", b"\x01"))

    assert (capture(state).rng, capture(state, b"\x02").rng) == (b"\x01", b"\x02")


def test_a_preview_shows_nothing_of_a_value() -> None:
    assert preview(b"\xa6secret") == {"type": "plain", "size": 7}
    assert preview(Live(Exception("secret"))) == {"type": "builtins.Exception"}


# --- damage ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"pending_tasks": [{}]},
        {"counters": [1]},
        {"completed_steps": [1, 2]},
        {"gates": {"d": [1]}},
        {"steps": None, "drop": "epoch"},
        {"pending_tasks": 5},
    ],
)
def test_facts_that_do_not_hold_together_are_corrupt_by_name(damage: dict[str, Any]) -> None:
    snapshot = capture(state_with(enqueue("a", b"\x01")))
    facts = snapshot.facts | damage
    facts.pop(damage.get("drop", ""), None)

    with pytest.raises(CheckpointCorrupt, match="session s does not hold together"):
        restore(facts, snapshot.payload())


def test_task_data_that_is_not_there_is_corrupt() -> None:
    snapshot = capture(state_with(enqueue("a", b"\x01")))

    with pytest.raises(CheckpointCorrupt, match="does not hold together"):
        restore(snapshot.facts, snapshot.payload() | {"data": []})

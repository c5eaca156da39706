"""What is encrypted cannot be read at its place, and fits nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    JournalDamaged,
    NoKey,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.protocols import Buffer, CheckpointStore, Sink
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.encrypted import (
    Encrypted,
    EncryptedCheckpointStore,
    fernet_keys,
    keys_by_path,
    of_environment,
)
from graflow_ckpt.stores.around.encryption import FRAME, TAG, EncryptingSink, OpeningSource
from graflow_ckpt.stores.around.keys import Keyring, new_key
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.pieces import BytesSource
from tests.trios import all_of, meta_of, owning, parts_of, put, put_meta, read, writer

OLD, NEW = Keyring({"old": b"o" * 32}), Keyring({"new": b"n" * 32, "old": b"o" * 32})
FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
HEAD = 28
Change = Callable[[bytes], bytes]


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore("memory://encrypted-unit")
    store.forget()
    return store


@pytest.fixture
def store(inner: MemoryStore) -> Encrypted:
    return Encrypted(inner, OLD)


def raw_parts(inner: CheckpointStore, name: str, stage: str) -> dict[str, bytes]:
    path = f"{inner.folder}/{name}"
    parts = {part: all_of(inner.open(path, part, stage)) for part in ("pkl", "state.json")}
    return {**parts, "meta.json": inner.meta(path)}


def put_raw(inner: CheckpointStore, name: str, stage: str, parts: dict[str, bytes]) -> None:
    given = [(part, writer(data)) for part, data in parts.items()]
    inner.put(f"{inner.folder}/{name}", given, lease=None, stage=stage)


def changed(
    inner: CheckpointStore, part: str, change: Change, name: str = "best", stage: str = "one"
) -> None:
    parts = raw_parts(inner, name, stage)
    put_raw(inner, name, stage, {**parts, part: change(parts[part])})


def refused(store: Encrypted, name: str = "best", stage: str = "one") -> CheckpointError:
    """By a fresh handle, which remembers nothing."""
    fresh, path = Encrypted(store.inner, store.keyring), f"{store.folder}/{name}"

    def look() -> None:
        fresh.meta(path)
        for part in ("state.json", "pkl"):
            all_of(fresh.open(path, part, stage))

    with pytest.raises(CheckpointError) as error:
        look()
    return error.value


def test_nothing_of_a_value_is_at_the_place(inner: MemoryStore, store: Encrypted) -> None:
    secret = b"the secret of the value"
    meta = json.dumps({"session_id": "s", "note": secret.decode(), "status": "running"}).encode()
    with owning(store) as lease:
        journal = store.journal(lease, 0)
        journal.append(secret)
        store.put(
            f"{store.folder}/best",
            [("pkl", writer(secret * 100_000)), ("state.json", writer(secret)), ("meta.json", writer(meta))],
            lease=lease,
            stage="one",
        )

        parts = raw_parts(inner, "best", "one")
        frames = b"".join(raw for _, _, raw in inner.segments("s"))

    assert not [data for data in (*parts.values(), frames) if b"secret" in data]
    assert json.loads(parts["meta.json"])["status"] == "running"  # what listings look for
    assert "note" not in json.loads(parts["meta.json"])


def test_two_equal_trios_have_nothing_in_common(inner: MemoryStore, store: Encrypted) -> None:
    put(store, "a", "one", size=5000)
    put(store, "b", "one", size=5000)

    a, b = raw_parts(inner, "a", "one"), raw_parts(inner, "b", "one")

    assert all(a[part] != b[part] for part in a)


def test_a_plain_trio_is_refused_by_name(inner: MemoryStore, store: Encrypted) -> None:
    put(inner, "best", "one")

    assert type(refused(store)) is UnsafeCheckpoint
    assert "not encrypted" in refused(store).message
    assert [raw for _, raw in store.list()] == [b""]


@pytest.mark.parametrize("part", ["pkl", "state.json"])
def test_a_plain_part_is_refused_by_name(inner: MemoryStore, store: Encrypted, part: str) -> None:
    put(store, "best", "one")
    changed(inner, part, lambda data: b"\x80\x05N.")

    assert type(refused(store)) is UnsafeCheckpoint
    assert part in refused(store).message


def test_a_plain_meta_over_encrypted_parts_is_refused_by_name(inner: MemoryStore, store: Encrypted) -> None:
    put(store, "best", "one")
    changed(inner, "meta.json", lambda data: meta_of("one"))

    assert type(refused(store)) is UnsafeCheckpoint


SEALED = FRAME + TAG
CHANGES: dict[str, Change] = {
    "a byte": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "an early byte": lambda data: data[: HEAD + 5] + bytes([data[HEAD + 5] ^ 1]) + data[HEAD + 6 :],
    "a byte of the head": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "frames in another order": lambda data: (
        data[:HEAD] + data[HEAD + SEALED : HEAD + 2 * SEALED] + data[HEAD : HEAD + SEALED]
        + data[HEAD + 2 * SEALED :]
    ),
    "a frame twice": lambda data: data[: HEAD + SEALED] + data[HEAD:],
    "a frame left out": lambda data: data[:HEAD] + data[HEAD + SEALED :],
    "the last frame left out": lambda data: data[: HEAD + 2 * SEALED],
    "all frames left out": lambda data: data[:HEAD],
    "cut in a frame": lambda data: data[:-1],
    "cut in the head": lambda data: data[:9],
    "more behind it": lambda data: data + bytes(50),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_frames_that_were_changed_swapped_or_cut_off_do_not_open(
    inner: MemoryStore, store: Encrypted, change: Change
) -> None:
    put(store, "best", "one", size=2 * FRAME + 500)

    changed(inner, "pkl", change)

    assert type(refused(store)) is CheckpointCorrupt
    assert "pkl" in refused(store).message


def test_parts_of_other_trios_do_not_open(inner: MemoryStore, store: Encrypted) -> None:
    put(store, "best", "one")
    put(store, "other", "one")
    mine, others = raw_parts(inner, "best", "one"), raw_parts(inner, "other", "one")

    for swapped in ({"pkl": others["pkl"]}, {"pkl": mine["state.json"]}, {"meta.json": others["meta.json"]}):
        put_raw(inner, "best", "one", {**mine, **swapped})
        assert type(refused(store)) is CheckpointCorrupt


def test_a_part_is_bound_to_its_stage(inner: MemoryStore, store: Encrypted) -> None:
    put(store, "best", "one")
    parts = raw_parts(inner, "best", "one")

    put_raw(inner, "best", "two", parts)

    assert type(refused(store, stage="two")) is CheckpointCorrupt


@pytest.mark.parametrize(
    ("field", "value"), [("session_id", "t"), ("status", "completed"), ("epoch", 9), ("workflow", "other")]
)
def test_a_field_that_was_changed_outside_is_refused(
    inner: MemoryStore, store: Encrypted, field: str, value: object
) -> None:
    put(store, "best", "one")
    changed(inner, "meta.json", lambda raw: json.dumps({**json.loads(raw), field: value}).encode())

    assert type(refused(store)) is CheckpointCorrupt
    assert "changed" in refused(store).message


@pytest.mark.parametrize("field", ["stage", "key_id", "meta"])
def test_what_the_envelope_says_of_itself_is_bound_too(
    inner: MemoryStore, store: Encrypted, field: str
) -> None:
    put(store, "best", "one")

    def change(raw: bytes) -> bytes:
        document = json.loads(raw)
        document["encrypted"][field] = "two"
        return json.dumps(document).encode()

    changed(inner, "meta.json", change)

    assert isinstance(refused(store), CheckpointCorrupt | UnknownKey)


def test_a_deep_or_endless_envelope_is_refused(inner: MemoryStore, store: Encrypted) -> None:
    put(store, "best", "one")
    deep = b'{"encrypted": {"version": 1, "stage": "one", "key_id": "old", "x": ' + b"[" * 900 + b"]" * 900
    for raw in (deep + b"}}", b"{" * 100_000, b'{"encrypted": 7}', b'{"encrypted": {"stage": 3}}'):
        changed(inner, "meta.json", lambda _, raw=raw: raw)

        assert isinstance(refused(store), CheckpointCorrupt | UnsafeCheckpoint)


@pytest.mark.parametrize(("stage", "part"), [("two", "pkl"), ("one", "state.json")])
def test_a_part_opens_under_its_own_stage_and_name_only(stage: str, part: str) -> None:
    class Kept(bytearray):
        def write(self, data: Buffer) -> int:
            self.extend(data)
            return len(data)

    kept = Kept()
    sink = EncryptingSink(kept, bytes(32), "one", "pkl")
    sink.write(b"values")
    sink.finish()

    def opened(stage: str, part: str) -> bytes:
        return all_of(OpeningSource(BytesSource(bytes(kept)), bytes(32), stage, part, "path"))

    assert opened("one", "pkl") == b"values"
    with pytest.raises(CheckpointCorrupt):
        opened(stage, part)


def test_a_trio_that_was_put_anew_under_its_stage_is_read_by_who_knew_the_former(
    inner: MemoryStore, store: Encrypted
) -> None:
    path = put(store, "best", "one", size=500)
    store.meta(path)  # and remembers its key

    put(Encrypted(inner, OLD), "best", "one", size=700)

    assert len(all_of(store.open(path, "pkl", "one"))) == 700


# --- keys ------------------------------------------------------------------------------------


def test_old_keys_open_and_the_newest_encrypts(inner: MemoryStore, store: Encrypted) -> None:
    old = put(store, "old", "one")
    both = Encrypted(inner, NEW)

    new = put(both, "new", "one")

    assert read(both, old).stage == read(both, new).stage == "one"
    assert keys_by_path(both) == {old: "old", new: "new"}
    assert type(refused(store, "new")) is UnknownKey
    assert refused(store, "new").ids["key_id"] == "new"


def test_a_new_key_for_a_trio_rewrites_its_meta_only(inner: MemoryStore, store: Encrypted) -> None:
    path = put(store, "best", "one", size=100_000)
    before = raw_parts(inner, "best", "one")

    put_meta(Encrypted(inner, NEW), "best", meta_of("one", size=100_000), "one")

    after = raw_parts(inner, "best", "one")
    assert {part for part in after if after[part] != before[part]} == {"meta.json"}
    alone = Encrypted(inner, Keyring({"new": b"n" * 32}))  # the old one can be thrown away
    assert read(alone, path).stage == "one"


def test_a_store_is_named_without_a_key_and_used_with_one(
    inner: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", "not a key")

    store = open_store("encrypted+memory://encrypted-unit")

    assert store.owner("s") is None
    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_KEY"):
        put(store, "best", "one")
    assert list(store.list()) == []
    put(Encrypted(inner, OLD), "best", "one")
    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_KEY"):
        list(store.list())


def test_a_fernet_key_of_the_environment_encrypts(inner: MemoryStore) -> None:
    env = {"GRAFLOW_CKPT_FERNET_KEY": FERNET, "GRAFLOW_CKPT_KEY": new_key()}

    ring = of_environment(inner, env)

    assert ring.signing[1] == b"01234567890123456789012345678901"
    assert len(ring.ids) == 2
    path = put(Encrypted(inner, ring), "best", "one")
    assert read(Encrypted(inner, fernet=FERNET.encode()), path).stage == "one"
    assert FERNET not in repr(ring)


def test_a_fernet_key_is_enough_where_nothing_seals(inner: MemoryStore, tmp_path: Path) -> None:
    class Shared(MemoryStore):
        shared = True

    ring = of_environment(
        Shared("memory://encrypted-unit"), {"GRAFLOW_CKPT_FERNET_KEY": FERNET, "HOME": str(tmp_path)}
    )

    assert ring.ids == tuple(fernet_keys(FERNET))


def test_a_database_takes_a_fernet_key_under_the_name_that_is_known_for_it(tmp_path: Path) -> None:
    store = EncryptedCheckpointStore(tmp_path / "runs.db", FERNET.encode())

    path = put(store, "best", "one")

    assert path.startswith("encrypted+sqlite:///")
    assert read(Encrypted(store.inner, fernet=FERNET), path).stage == "one"
    assert b"values of" not in (tmp_path / "runs.db").read_bytes()
    with pytest.raises(NoKey):
        EncryptedCheckpointStore(tmp_path / "runs.db", b"")


@pytest.mark.parametrize("text", ["no key", FERNET[:-4], FERNET + "," + "x" * 44, "ü" * 44])
def test_what_is_no_fernet_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(CheckpointError, match="no Fernet key") as refused:
        fernet_keys(text)

    assert text not in str(refused.value)


# --- journal ---------------------------------------------------------------------------------


def appended(store: Encrypted, *frames: bytes) -> tuple[int, bytes]:
    """The epoch, and the segment as it is kept."""
    with owning(store) as lease:
        journal = store.journal(lease, 3)
        for frame in frames:
            journal.append(frame)
        journal.close()
    return next((epoch, raw) for epoch, _, raw in store.inner.segments("s"))


class Kept(MemoryStore):
    """A store whose one segment is given."""

    segment: tuple[int, int, bytes] = (0, 0, b"")

    def segments(self, session: str):  # type: ignore[no-untyped-def]
        return iter([self.segment])


def frames_of(raw: bytes, epoch: int, after: int = 3, session: str = "s", keyring: Keyring = OLD) -> bytes:
    inner = Kept("memory://encrypted-unit")
    inner.segment = (epoch, after, raw)
    return next(found for _, _, found in Encrypted(inner, keyring).segments(session))


def test_a_torn_end_of_a_journal_is_cut_off_wherever_it_is(store: Encrypted) -> None:
    epoch, raw = appended(store, b"one;", b"two;", b"three;")

    found = [frames_of(raw[:size] + bytes(9), epoch) for size in range(len(raw))]

    assert set(found) == {b"", b"one;", b"one;two;"}
    assert found == sorted(found, key=len)
    assert frames_of(raw, epoch) == b"one;two;three;"


def test_a_frame_with_good_ones_after_it_is_damage_if_it_is_changed_or_missing(store: Encrypted) -> None:
    epoch, raw = appended(store, b"one;", b"two;", b"three;")
    first = raw.index(b"GF")
    second = first + 22 + 4 + TAG
    third = second + 22 + 4 + TAG

    for damaged in (
        raw[: second - 1] + bytes([raw[second - 1] ^ 1]) + raw[second:],
        raw[:second] + raw[third:],
        raw[:first] + raw[second:],
        raw[:first] + raw[second:third] + raw[first:second] + raw[third:],
        raw[:third] + raw[first:],
    ):
        with pytest.raises(JournalDamaged):
            list(journal.read(OLD, "s", epoch, 3, frames_of(damaged, epoch)))


def test_a_segment_opens_at_its_place_only(store: Encrypted) -> None:
    epoch, raw = appended(store, b"one;")

    assert frames_of(raw, epoch) == b"one;"
    assert frames_of(raw, epoch + 1) == frames_of(raw, epoch, 4) == frames_of(raw, epoch, session="t") == b""


def test_a_plain_journal_is_refused_by_name(store: Encrypted) -> None:
    with pytest.raises(UnsafeCheckpoint, match="not encrypted"):
        frames_of(b"GJplain", 1)


def test_a_journal_of_a_key_that_is_not_here_is_refused_by_name(store: Encrypted) -> None:
    epoch, raw = appended(store, b"one;")

    with pytest.raises(UnknownKey, match="old"):
        frames_of(raw, epoch, keyring=Keyring({"other": bytes(32)}))


def test_what_a_writer_wrote_before_it_failed_is_not_kept(inner: MemoryStore, store: Encrypted) -> None:
    path = put(store, "best", "one")

    def fail(sink: Sink) -> None:
        sink.write(bytes(3 * FRAME))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.put(path, [("pkl", fail), *parts_of("two")[1:]], lease=None, stage="two")

    assert read(store, path).stage == "one"

"""What is encrypted cannot be read at its place, and fits nowhere else; what is compressed comes back to the
byte, and never grows beyond what it said."""

from __future__ import annotations

import json
import random
import resource
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from blake3 import blake3

import graflow_ckpt
from graflow_ckpt import CheckpointManager, task, workflow
from graflow_ckpt.checkpoint import archive, journal, model
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.checkpoint.care.resealing import put_sealed, reseal
from graflow_ckpt.checkpoint.history import records
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.protocols import Buffer, CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.encoded import Compressed, Encrypted, EncryptedCheckpointStore
from graflow_ckpt.stores.around.encodings import (
    AEAD,
    FRAME,
    PRIVATE,
    ZSTD,
    Encoding,
    Metas,
    encoding_of,
    key_in,
)
from graflow_ckpt.stores.around.keys import Keyring, fernet_keys, new_key
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.names import document_in
from graflow_ckpt.stores.streams import BytesSource
from tests.trios import all_of, own_name, owning, writer
from tests.unit.checkpoint import trios

OLD, NEW = Keyring({"old": b"o" * 32}), Keyring({"new": b"n" * 32, "old": b"o" * 32})
ALONE = Keyring({"new": b"n" * 32})
FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
SECRET = "what nobody is to read"
ROOM = "memory://encodings-unit"
HEAD, TAG = struct.Struct("<IIB"), 16
SEALED = HEAD.size + FRAME + TAG
Change = Callable[[bytes], bytes]


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore(ROOM)
    store.forget()
    return store


@pytest.fixture
def store(inner: MemoryStore) -> Encrypted:
    return Encrypted(inner, OLD)


def save(
    store: CheckpointStore,
    name: str = "best",
    values: object = SECRET,
    *,
    ring: Keyring = OLD,
    sequence: int = 1,
) -> CheckpointMetadata:
    """A session whose value v is that, and whose metadata has a note."""
    state = trios.state("s", ("put", "v", Live(values), -1))
    path, user = f"{store.folder}/{name}", {"note": SECRET}
    return trios.save(Path(), of=state, user=user, ring=ring, store=store, path=path, sequence=sequence)


def value_of(store: CheckpointStore, name: str = "best", ring: Keyring = OLD) -> object:
    return archive.load(store, ring, f"{store.folder}/{name}")[1].payload["live"]["v"]


def stored(inner: CheckpointStore, name: str = "best") -> dict[str, bytes]:
    path = f"{inner.folder}/{name}"
    raw = inner.meta(path)
    stage = json.loads(raw)["stage"]
    return {part: all_of(inner.open(path, part, stage)) for part in ("pkl", "state.json")} | {
        "meta.json": raw
    }


def put_raw(inner: CheckpointStore, parts: dict[str, bytes], name: str = "best") -> None:
    given = [(part, writer(data)) for part, data in parts.items()]
    stage = (document_in(parts["meta.json"]) or {}).get("stage", "one")
    inner.put(f"{inner.folder}/{name}", given, lease=None, stage=str(stage))


def changed(inner: CheckpointStore, part: str, change: Change) -> None:
    parts = stored(inner)
    put_raw(inner, {**parts, part: change(parts[part])})


def refused(store: CheckpointStore, name: str = "best", ring: Keyring = OLD) -> errors.CheckpointError:
    with pytest.raises(errors.CheckpointError) as error:
        value_of(store, name, ring)
    return error.value


def sealed_anew(inner: CheckpointStore, **fields: object) -> None:
    """As a holder of the key can: what is decoded has to stand this, too."""
    changed(inner, "meta.json", lambda raw: json.dumps(seal({**json.loads(raw), **fields}, OLD)).encode())


# --- what is encrypted -----------------------------------------------------------------------


def test_nothing_of_a_value_is_at_the_place(inner: MemoryStore, store: Encrypted) -> None:
    save(store, values=[SECRET] * 1000)
    with owning(store) as lease:
        segment = store.journal(lease, 0)
        frames = journal.Writer(OLD, "s", lease.epoch, 0, store.encoding)
        segment.append(frames.head + frames.frame(journal.pack(1, 1.0, [("put", "v", SECRET.encode(), 0)])))

    parts = stored(inner)
    kept = b"".join(raw for _, _, raw in inner.segments("s"))

    assert not [data for data in (*parts.values(), kept) if SECRET.encode() in data or b"completed" in data]
    meta = json.loads(parts["meta.json"])
    assert (meta["status"], meta["workflow"], meta["session_id"]) == (
        "running",
        "w",
        "s",
    )  # listings look for it
    assert not {"user_metadata", "argv", "file", "inputs", "host", "options"} & meta.keys()
    assert (meta["encoding"], meta["needs"]) == (["aead:old"], ["aead"])
    assert value_of(store) == [SECRET] * 1000


def test_two_equal_trios_have_nothing_in_common(inner: MemoryStore, store: Encrypted) -> None:
    for name in ("a", "b"):
        save(store, name)

    a, b = stored(inner, "a"), stored(inner, "b")

    assert all(a[part] != b[part] for part in a)


def test_what_is_not_encrypted_is_refused_by_name_and_listed_as_unreadable(
    inner: MemoryStore, store: Encrypted
) -> None:
    save(inner)

    assert type(refused(store)) is errors.UnsafeCheckpoint
    assert "not encrypted" in refused(store).message
    assert (len(inventory(store).cuts), len(inventory(store).unreadable)) == (0, 1)
    assert value_of(inner) == SECRET


@pytest.mark.parametrize("part", ["pkl", "state.json", "meta.json"])
def test_a_plain_file_among_encrypted_ones_is_refused(
    inner: MemoryStore, store: Encrypted, part: str
) -> None:
    save(inner, "plain")
    save(store)

    changed(inner, part, lambda data: stored(inner, "plain")[part])

    assert isinstance(refused(store), errors.UnsafeCheckpoint | errors.CheckpointCorrupt)


CHANGES: dict[str, Change] = {
    "a byte": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "an early byte": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "a byte of a head": lambda data: data[:1] + bytes([data[1] ^ 1]) + data[2:],
    "frames in another order": lambda data: data[SEALED : 2 * SEALED] + data[:SEALED] + data[2 * SEALED :],
    "a frame twice": lambda data: data[:SEALED] + data,
    "a frame left out": lambda data: data[SEALED:],
    "the last frame left out": lambda data: data[: 2 * SEALED],
    "all frames left out": lambda data: b"",
    "cut in a frame": lambda data: data[:-1],
    "cut in a head": lambda data: data[:5],
}
MORE: dict[str, Change] = {"more behind it": lambda data: data + bytes(50)}


@pytest.mark.parametrize("change", [*CHANGES.values(), *MORE.values()], ids=[*CHANGES, *MORE])
def test_parts_that_were_changed_swapped_or_cut_off_are_refused(
    inner: MemoryStore, store: Encrypted, change: Change
) -> None:
    save(store, values=[str(number) for number in range(40_000)])

    changed(inner, "pkl", change)

    assert type(refused(store)) is errors.CheckpointCorrupt
    assert "not what was written" in str(refused(store))


BOTH = Encoding((ZSTD, AEAD), "k", bytes(32), b"k" * 32, b"s" * 32)


class Kept(bytearray):
    def write(self, data: Buffer, /) -> int:
        self.extend(data)
        return len(data)


def encoded(encoding: Encoding, data: bytes, part: str = "pkl") -> bytes:
    kept = Kept()
    assert encoding.write(kept, part, writer(data)) == len(data)
    return bytes(kept)


def decoded(encoding: Encoding, data: bytes, size: int | None, part: str = "pkl") -> bytes:
    return all_of(encoding.read(BytesSource(data), size, part, "path"))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_frames_open_in_their_order_only_also_if_a_digest_says_nothing(change: Change) -> None:
    data = random.Random(1).randbytes(2 * FRAME + 500)

    with pytest.raises(errors.CheckpointCorrupt):
        decoded(BOTH, change(encoded(BOTH, data)), len(data))


def test_a_part_opens_under_its_own_name_and_key_only() -> None:
    kept = encoded(BOTH, b"values")

    assert decoded(BOTH, kept, 6) == b"values"
    for other, part in ((BOTH, "state.json"), (replace(BOTH, key=b"x" * 32), "pkl")):
        with pytest.raises(errors.CheckpointCorrupt):
            decoded(other, kept, 6, part)


@pytest.mark.parametrize("size", [0, 1, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME + 7])
@pytest.mark.parametrize("kinds", [(ZSTD,), (AEAD,), (ZSTD, AEAD)])
def test_what_comes_out_is_what_went_in(kinds: tuple[str, ...], size: int) -> None:
    encoding = replace(BOTH, kinds=kinds, key=b"k" * 32 if AEAD in kinds else b"")
    data = (b"ab" * size)[: size // 2] + random.Random(2).randbytes(size - size // 2)

    assert decoded(encoding, encoded(encoding, data), size) == data


def test_parts_of_other_trios_are_refused(inner: MemoryStore, store: Encrypted) -> None:
    save(store)
    save(store, "other")
    mine, others = stored(inner), stored(inner, "other")
    private = json.loads(others["meta.json"])[PRIVATE]

    for part, data in (("pkl", others["pkl"]), ("pkl", mine["state.json"])):
        put_raw(inner, {**mine, part: data})
        assert type(refused(store)) is errors.CheckpointCorrupt
    put_raw(inner, mine)
    sealed_anew(inner, private=private)
    assert "changed after they were encoded" in str(refused(store))


def test_a_whole_trio_says_itself_what_it_is_wherever_it_lies(inner: MemoryStore, store: Encrypted) -> None:
    save(store)

    put_raw(inner, stored(inner), "moved")

    assert value_of(store, "moved") == SECRET


@pytest.mark.parametrize(
    ("field", "value"),
    [("session_id", "t"), ("status", "completed"), ("epoch", 9), ("workflow", "other"), ("stage", "two"),
     ("key_id", "new"), ("encoding", ["aead:new"]), ("encoding", None), ("encoding", ["zstd"]), ("needs", []),
     (PRIVATE, "two"), (PRIVATE, None), ("user_metadata", {"note": "mine"})],
)  # fmt: skip
def test_a_meta_that_was_changed_is_refused(
    inner: MemoryStore, store: Encrypted, field: str, value: object
) -> None:
    save(store)
    changed(inner, "meta.json", lambda raw: json.dumps({**json.loads(raw), field: value}).encode())

    assert isinstance(refused(store), errors.UnsafeCheckpoint | errors.UnknownKey | errors.CheckpointCorrupt)
    assert len(list(store.list())) == 1


@pytest.mark.parametrize(
    "fields",
    [{"encoding": "zstd"}, {"encoding": ["aead"]}, {"encoding": [7]}, {"encoding": ["rot13"]}, {PRIVATE: 7},
     {PRIVATE: "AAAA"}, {"encoding": {"a": 1}}, {"parts": {"pkl": 1}}],
)  # fmt: skip
def test_what_a_holder_of_the_key_has_sealed_wrongly_is_refused_too(
    inner: MemoryStore, store: Encrypted, fields: dict[str, object]
) -> None:
    save(store)
    sealed_anew(inner, **fields)

    assert isinstance(refused(store), errors.CheckpointError)


def test_a_deep_or_endless_meta_is_refused_and_listed(inner: MemoryStore, store: Encrypted) -> None:
    save(store)
    deep = b'{"private": ' + b"[" * 900 + b"]" * 900 + b"}"
    for raw in (deep, b"{" * 100_000, b'{"private": 7}', b'{"encoding": {"stage": 3}}'):
        changed(inner, "meta.json", lambda _, raw=raw: raw)

        assert isinstance(refused(store), errors.CheckpointCorrupt | errors.UnsafeCheckpoint)
        assert len(inventory(store).unreadable) == 1
        save(store)


def test_a_reader_that_lacks_an_encoding_refuses_by_name(
    inner: MemoryStore, store: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Compressed(store))
    monkeypatch.setattr(model, "NEEDS", frozenset({"rewinds"}))

    for place in (store, inner):
        assert type(refused(place)) is errors.SchemaUnsupported
        assert "needs zstd, aead" in refused(place).message


def test_what_a_writer_wrote_before_it_failed_is_not_kept(inner: MemoryStore, store: Encrypted) -> None:
    save(store)

    class Fails:
        def __reduce__(self) -> Any:
            raise RuntimeError

    with pytest.raises(Exception, match="v"):
        save(store, values=["x" * 3 * FRAME, Fails()])

    assert value_of(store) == SECRET


# --- what is read without its word, and what follows -----------------------------------------


@pytest.mark.parametrize(
    "words", ["encrypted+", "compressed+", "compressed+encrypted+", "encrypted+compressed+"]
)
def test_with_the_keys_it_is_read_by_its_plain_path(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    store = open_store(f"{words}file://{tmp_path}/kept")
    save(store, own_name(), ring=Keyring.load())
    plain = f"{tmp_path}/kept/{own_name()}"

    assert not Path(plain).read_bytes().startswith(b"\x80\x05")
    assert CheckpointManager.verify(plain).user_metadata == {"note": SECRET}
    assert graflow_ckpt.load(plain).session_id == "s"
    assert len(CheckpointManager.list_checkpoints("s", store=f"{tmp_path}/kept")) == 1


def test_a_session_that_is_encrypted_does_not_go_on_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())

    def run(store: str) -> None:
        with workflow("w", "s", store=store) as flow:

            @task
            def a() -> int:
                return 1

            flow.execute()

    encrypted = f"encrypted+file://{tmp_path}/kept"
    save(open_store(encrypted), own_name(), ring=Keyring.load())

    with pytest.raises(errors.UnsafeCheckpoint, match="is encrypted") as error:
        run(f"{tmp_path}/kept")

    assert "encrypted+" in error.value.hint


# --- keys ------------------------------------------------------------------------------------


def test_old_keys_open_and_the_newest_encrypts(inner: MemoryStore, store: Encrypted) -> None:
    save(store, "old")
    both = Encrypted(inner, NEW)

    save(both, "new")

    assert value_of(both, "old") == value_of(both, "new") == SECRET
    assert {json.loads(raw)["encoding"][0] for _, raw in inner.list()} == {"aead:old", "aead:new"}
    assert type(refused(store, "new")) is errors.UnknownKey
    assert refused(store, "new").ids["key_id"] == "new"


def test_a_new_key_for_a_trio_rewrites_its_meta_only(inner: MemoryStore, store: Encrypted) -> None:
    save(store, values=[SECRET] * 5000)
    before = stored(inner)

    assert reseal(Encrypted(inner, NEW), NEW).done == 1

    after = stored(inner)
    assert {part for part in after if after[part] != before[part]} == {"meta.json"}
    alone = Encrypted(inner, ALONE)  # the old one can be thrown away
    assert value_of(alone, ring=ALONE) == [SECRET] * 5000


def test_a_meta_that_is_put_alone_keeps_the_encoding_of_its_parts(inner: MemoryStore) -> None:
    store = Compressed(Encrypted(inner, OLD))
    save(store, values=[SECRET] * 5000)
    meta = json.loads(inner.meta(f"{inner.folder}/best"))

    put_sealed(store, OLD, f"{store.folder}/best", meta, None, {"user_metadata": {"loss": 2}})

    found = archive.find(store, OLD, f"{store.folder}/best")
    assert (found.metadata.user_metadata, value_of(store)) == ({"loss": 2}, [SECRET] * 5000)
    assert b"loss" not in inner.meta(f"{inner.folder}/best")


def test_a_store_is_named_without_a_key_and_used_with_one(
    inner: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", "not a key")

    store = open_store(f"encrypted+{ROOM}")

    assert store.owner("s") is None
    assert list(inventory(store).cuts) == []
    save(Encrypted(inner, OLD))
    for look in (inventory, lambda store: CheckpointManager.list_checkpoints(store=store.url), encoded_by):
        with pytest.raises(errors.CheckpointError, match="GRAFLOW_CKPT_KEY"):
            look(store)


def encoded_by(store: CheckpointStore) -> Encoding | None:
    return encoding_of(store, Keyring.for_store(store))


def test_a_fernet_key_of_the_environment_encrypts_and_seals_nothing(inner: MemoryStore) -> None:
    env = {"GRAFLOW_CKPT_FERNET_KEY": FERNET, "GRAFLOW_CKPT_KEY": new_key()}

    ring = Keyring.for_store(inner, env)

    assert ring.encrypting[1] == b"01234567890123456789012345678901"
    assert (len(ring.opening), len(ring.ids)) == (2, 1)
    assert ring.signing[0] != ring.encrypting[0]
    assert ring.secret(ring.encrypting[0]) is None
    save(Encrypted(inner), ring=ring)
    assert key_in(json.loads(inner.meta(f"{inner.folder}/best"))) == ring.encrypting[0]
    assert value_of(
        Encrypted(inner, fernet=FERNET.encode()), ring=Keyring.load(env | {"GRAFLOW_CKPT_FERNET_KEY": ""})
    )
    assert FERNET not in repr(ring)
    with pytest.raises(errors.NoKey):  # to seal takes a key of its own
        Keyring.load({"GRAFLOW_CKPT_FERNET_KEY": FERNET}, local=False)


def test_a_database_takes_a_fernet_key_under_the_name_that_is_known_for_it(tmp_path: Path) -> None:
    store = EncryptedCheckpointStore(tmp_path / "runs.db", FERNET.encode())

    path = save(store).path

    assert path.startswith("encrypted+sqlite:///")
    assert value_of(Encrypted(store.inner, fernet=FERNET)) == SECRET
    assert SECRET.encode() not in (tmp_path / "runs.db").read_bytes()
    with pytest.raises(errors.NoKey):
        EncryptedCheckpointStore(tmp_path / "runs.db", b"")


@pytest.mark.parametrize("text", ["no key", FERNET[:-4], FERNET + "," + "x" * 44, "ü" * 44])
def test_what_is_no_fernet_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(errors.CheckpointError, match="no Fernet key") as refused:
        fernet_keys(text)

    assert text not in str(refused.value)


# --- contents --------------------------------------------------------------------------------


LARGE = (SECRET * 5000).encode()


def keys_in(store: SqliteStore, name: str) -> list[str]:
    return [entry.key for entry in store.driver.keys("data/") if f"/{name}/" in entry.key]


@pytest.mark.parametrize("packs", [False, True])
def test_equal_contents_are_stored_once_and_say_nothing_of_their_bytes(tmp_path: Path, packs: bool) -> None:
    inner = SqliteStore(tmp_path / "runs.db")
    store = Compressed(Encrypted(inner, OLD)) if packs else Encrypted(inner, OLD)

    for sequence in (1, 2):
        save(store, own_name(sequence=sequence), LARGE, sequence=sequence)

    metas = [json.loads(raw) for _, raw in inner.list()]
    (content,), (same,) = (meta["contents"] for meta in metas)
    assert content["name"] == same["name"] != blake3(LARGE).hexdigest()
    assert len(keys_in(inner, content["name"])) == 1
    assert value_of(store, own_name()) == value_of(store, own_name(sequence=2)) == LARGE
    store.delete(f"{store.folder}/{own_name()}")
    assert value_of(store, own_name(sequence=2)) == LARGE
    assert b"nobody is" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_contents_are_compressed_without_a_key_too(tmp_path: Path) -> None:
    store = Compressed(SqliteStore(tmp_path / "runs.db"))

    size = save(store, own_name(), LARGE).size

    (content,) = json.loads(store.meta(f"{store.folder}/{own_name()}"))["contents"]
    assert content["size"] < len(LARGE) / 10
    assert content["plain"] == len(LARGE)
    assert size < len(LARGE)
    assert value_of(store, own_name()) == LARGE


def test_after_a_new_key_contents_of_the_old_one_are_read_and_those_of_the_new_are_others(
    tmp_path: Path,
) -> None:
    inner = SqliteStore(tmp_path / "runs.db")
    save(Encrypted(inner, OLD), own_name(), LARGE)
    reseal(Encrypted(inner, NEW), NEW)

    alone = Encrypted(inner, ALONE)
    save(alone, own_name(sequence=2), LARGE, ring=ALONE, sequence=2)

    assert value_of(alone, own_name(), ALONE) == value_of(alone, own_name(sequence=2), ALONE) == LARGE
    names = {json.loads(raw)["contents"][0]["name"] for _, raw in inner.list()}
    assert len(names) == 2


# --- journals --------------------------------------------------------------------------------


PAYLOADS = [journal.pack(number, 1.0, [("put", "v", f"value {number}".encode(), 0)]) for number in (4, 5, 6)]


def segment_of(ring: Keyring = OLD, epoch: int = 1) -> tuple[bytes, list[int]]:
    """The bytes of a segment, and where its frames end."""
    frames = journal.Writer(ring, "s", epoch, 3, (AEAD,))
    raw, ends = frames.head, [len(frames.head)]
    for payload in PAYLOADS:
        raw += frames.frame(payload)
        ends.append(len(raw))
    return raw, ends


def read(raw: bytes, ring: Keyring = OLD, place: tuple[str, int, int] = ("s", 1, 3)) -> list[bytes]:
    return list(journal.read(ring, *place, raw, (AEAD,)))


def test_a_torn_end_of_a_journal_is_cut_off_wherever_it_is() -> None:
    raw, _ = segment_of()

    found = [read(raw[:size] + bytes(9)) for size in range(len(raw))]

    assert [PAYLOADS[: len(each)] for each in found] == found
    assert sorted(map(len, found)) == [*map(len, found)]
    assert {len(each) for each in found} == {0, 1, 2}
    assert read(raw) == PAYLOADS


def test_a_frame_with_good_ones_after_it_is_damage_if_it_is_changed_or_missing() -> None:
    raw, (head, first, second, _) = segment_of()

    for damaged in (
        raw[: first - 1] + bytes([raw[first - 1] ^ 1]) + raw[first:],
        raw[:first] + raw[second:],
        raw[:head] + raw[first:],
        raw[:head] + raw[first:second] + raw[head:first] + raw[second:],
        raw[:second] + raw[head:],
    ):
        with pytest.raises(errors.JournalDamaged):
            read(damaged)


@pytest.mark.parametrize("place", [("t", 1, 3), ("s", 2, 3), ("s", 1, 4)])
def test_a_segment_opens_at_its_place_only(place: tuple[str, int, int]) -> None:
    with pytest.raises(errors.JournalDamaged):
        read(segment_of()[0], place=place)


def test_a_plain_journal_is_refused_by_name(store: Encrypted) -> None:
    with owning(store) as lease:
        frames = journal.Writer(OLD, "s", lease.epoch, 0)
        store.journal(lease, 0).append(frames.head + frames.frame(PAYLOADS[0]))

    with pytest.raises(errors.UnsafeCheckpoint, match="not encrypted"):
        list(records(store, OLD, 0, None, "s"))


def test_a_journal_of_a_key_that_is_not_here_is_refused_by_name() -> None:
    raw, _ = segment_of(Keyring({"seals": bytes(32)}, {"old": b"o" * 32}))

    with pytest.raises(errors.UnknownKey, match="old"):
        read(raw, Keyring({"seals": bytes(32)}))
    assert journal.keys_of(raw) == {"seals", "old"}


def test_what_does_not_know_the_format_refuses_an_encrypted_journal_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw, _ = segment_of()
    monkeypatch.setattr(journal, "_KNOWN", (b"1", b"2"))

    assert journal.is_later(raw)
    with pytest.raises(errors.SchemaUnsupported, match="format 5"):
        read(raw)


# --- what is compressed ----------------------------------------------------------------------


PACKING = Encoding((ZSTD,))


def test_what_repeats_itself_takes_less_room() -> None:
    values = b"the same again and again;" * 100_000

    assert len(encoded(PACKING, values)) < len(values) / 100


@pytest.mark.parametrize("kind", ["random", "packed already"])
def test_what_gains_nothing_stays_as_it_is(kind: str) -> None:
    values = random.Random(1).randbytes(3_000_000)
    if kind == "packed already":
        words = random.Random(2).choices([b"alpha ", b"beta ", b"gamma "], k=2_000_000)
        values = zstandard.compress(b"".join(words))

    kept = encoded(PACKING, values)

    assert len(kept) == -(-len(values) // FRAME) * HEAD.size + len(values)
    assert decoded(PACKING, kept, len(values)) == values


def test_what_is_small_stays_as_it_is() -> None:
    assert encoded(PACKING, b"a" * 100)[-100:] == b"a" * 100


def test_each_frame_is_judged_by_itself() -> None:
    noise = random.Random(3).randbytes(FRAME)

    assert 2 * FRAME < len(encoded(PACKING, noise + bytes(FRAME) + noise)) < 2 * FRAME + 1000


def test_what_was_there_before_is_read_and_sealed_as_it_is(inner: MemoryStore) -> None:
    save(inner)
    before = stored(inner)

    reseal(Compressed(inner), NEW)

    assert value_of(Compressed(inner), ring=NEW) == SECRET
    after = stored(inner)
    assert {part for part in after if after[part] != before[part]} == {"meta.json"}
    assert "encoding" not in json.loads(after["meta.json"])


# --- bombs and damage ------------------------------------------------------------------------


def frame(data: bytes, *, size: int | None = None, how: int = 1) -> bytes:
    return HEAD.pack(len(data) if size is None else size, len(data), how) + data


def bomb(size: int) -> bytes:
    """A frame that grows to `size`, and says nothing of it."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    piece = bytes(1 << 20)
    return b"".join([*(compressor.compress(piece) for _ in range(size >> 20)), compressor.flush()])


def liar(size: int) -> bytes:
    """A frame that says that it grows to `size`, and holds almost nothing."""
    found = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(b"x" * 70_000))
    found[5:9] = b""  # the field of 4 bytes gives way to one of 8
    found[4] = (found[4] & 0x3F) | 0xC0
    return bytes(found[:5]) + struct.pack("<Q", size) + bytes(found[5:])


BOMBS = {
    "bomb": frame(bomb(256 << 20), size=FRAME),
    "a frame beyond all bounds": frame(bomb(256 << 20), size=256 << 20),
    "bomb in a small frame": frame(bomb(256 << 20), size=60_000),
    "a frame that lies": frame(liar(1 << 40), size=FRAME),
    "endless frame": frame(b"x", size=2**32 - 1, how=0),
    "grows in a plain frame": frame(b"x" * 400, size=300, how=0),
    "endless kept": HEAD.pack(60_000, 2**32 - 1, 1),
    "empty frames": HEAD.pack(0, 0, 0) * 3,
    "less than said": frame(zstandard.compress(b"x" * 200), size=60_000),
    "not packed": frame(b"not packed at all, and yet it says so", size=60_000),
    "unknown way": frame(zstandard.compress(b"x" * 60_000), size=60_000, how=2),
    "nothing": b"",
    "torn": b"\x01\x02",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_part_that_does_not_hold_what_it_says_is_corrupt(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(errors.CheckpointCorrupt, match="cannot be decoded"):
        decoded(PACKING, data, 200_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # in KiB


def test_nothing_is_decoded_whose_digest_does_not_fit(
    inner: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Compressed(inner), values=[f"{SECRET} {n}" for n in range(9000)])
    for part in ("pkl", "state.json"):
        changed(
            inner, part, lambda data: BOMBS["a frame that lies"] + data[len(BOMBS["a frame that lies"]) :]
        )
    monkeypatch.setattr(zstandard, "ZstdDecompressor", None)  # to be called is an error of another kind

    assert type(refused(inner)) is errors.CheckpointCorrupt


@pytest.mark.parametrize("size", [10, 2**60, -1, "x", None, 1.5])
def test_a_size_that_is_none_is_corrupt(inner: MemoryStore, size: object) -> None:
    save(Compressed(inner), values=[f"{SECRET} {n}" for n in range(9000)])
    parts = json.loads(inner.meta(f"{inner.folder}/best"))["parts"]

    sealed_anew(inner, parts=parts | {"pkl": parts["pkl"] | {"plain": size}})

    assert isinstance(refused(inner), errors.CheckpointCorrupt)


def test_metas_are_opened_with_the_keys_that_their_store_was_given(
    inner: MemoryStore, store: Encrypted
) -> None:
    save(store)
    meta = json.loads(inner.meta(f"{inner.folder}/best"))

    found, encoding = Metas(store, ALONE).revealed("p", meta)

    assert found["user_metadata"] == {"note": SECRET}
    assert encoding is not None
    assert repr(encoding).find("oooo") < 0
    assert Metas(inner, ALONE).shown("p", meta) is None

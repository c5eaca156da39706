"""A wrapper that does nothing is the store that it wraps, under another address."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, TaskExecutionContext
from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.core.errors import CheckpointError, JournalDamaged, ServerGone
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores import open_store, open_store_of
from graflow_ckpt.stores.around.encoded import Compressed, Encrypted
from graflow_ckpt.stores.around.encodings import AEAD
from graflow_ckpt.stores.around.keys import Keyring, new_key
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.conformance.contracts.listing import ListingContract, NamesContract
from tests.conformance.contracts.trio import Opener, TrioContract
from tests.loops import chain
from tests.trios import all_of, listed, named, own_name, owning, put, put_own, read, writer
from tests.unit.checkpoint.trios import save, state
from tests.unit.stores.wrappers import Other, Plain


class TestWrapped(TrioContract, NamesContract, ListingContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: Plain(Other(LocalStore(f"file://{tmp_path}/checkpoints")), "x")


def test_a_relative_folder_is_named_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Plain(LocalStore("runs"))

    path = put(store, "best", "one")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert path == f"plain+file://{tmp_path}/runs/best"
    assert [found for found, _ in store.list()] == [f"{path}.pkl"]
    assert read(store, path).stage == "one"


def test_a_path_that_names_no_store_is_written_through_the_wrapper(tmp_path: Path) -> None:
    store = Plain(LocalStore(tmp_path / "runs"))

    assert store.takes(f"{tmp_path}/mine.pkl") == f"plain+file://{tmp_path}/mine.pkl"
    assert store.takes("mine.pkl") == f"plain+file://{os.getcwd()}/mine.pkl"
    assert Plain(MemoryStore("memory://wrapping")).takes("mine.pkl") is None


def test_the_path_of_what_is_wrapped_is_not_a_path_of_the_wrapper(tmp_path: Path) -> None:
    store = Plain(LocalStore(tmp_path / "runs"))
    foreign = f"file://{tmp_path}/runs/best"

    assert store.takes(foreign) is None
    with pytest.raises(CheckpointError, match="is not in plain"):
        store.meta(foreign)


# --- orders -----------------------------------------------------------------------------


SECRET = b"values of n1"


def denied(*args: object, **named: object) -> None:
    raise ServerGone("it is away")


@pytest.fixture
def surroundings(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    monkeypatch.setenv("GRAFLOW_CKPT_FALLBACK", str(tmp_path / "folder"))
    monkeypatch.setenv("GRAFLOW_CKPT_CACHE_URL", redis_url)
    yield
    MemoryStore("memory://orders").forget()


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize(
    "words", ["fallback+encrypted+", "encrypted+fallback+", "fallback+tenant.acme+encrypted+"]
)
def test_what_waits_for_an_encrypted_store_is_encrypted_too(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{words}memory://orders")
    with monkeypatch.context() as away:
        away.setattr(MemoryStore, "put", denied)
        path = save(
            Path(), user={"note": "secret"}, store=store, path=f"{store.folder}/best", ring=Keyring.load()
        ).path

    waiting = [file.read_bytes() for file in (tmp_path / "folder").rglob("best.*")]

    assert len(waiting) == 3
    assert not [data for data in waiting if b"secret" in data or b"prog.py" in data or b"summary" in data]
    assert archive.load(store, Keyring.load(), path)[0].metadata.user_metadata == {"note": "secret"}


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("words", ["cached+encrypted+", "encrypted+cached+"])
def test_a_cache_of_an_encrypted_store_has_nothing_in_the_clear(words: str, redis_url: str) -> None:
    store = open_store(f"{words}memory://orders")
    path = save(Path(), store=store, path=f"{store.folder}/best", ring=Keyring.load()).path
    for _ in range(2):
        assert archive.load(store, Keyring.load(), path)[0].metadata.session_id == "s"

    client = open_link(redis_url).client
    cached = [value for key in client.keys("graflow:cache:*") for value in client.hgetall(key).values()]

    assert len(cached) == 2
    assert not [data for data in cached if b"summary" in data or b"_restore" in data]


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize(
    "words",
    [
        "encrypted+fallback+",
        "encrypted+cached+retry+",
        "compressed+encrypted+cached+retry.5+",
        "fallback+tenant.acme+cached+",
        "compressed+encrypted+tenant.acme+fallback+cached+retry+",
    ],
)
def test_wrappers_work_together(words: str) -> None:
    store = open_store(f"{words}memory://orders")
    with owning(store) as lease:
        path = put_own(store, lease, 1)

    assert path.startswith(words)
    for _ in range(2):
        assert SECRET in read(open_store_of(path), path).values
    assert listed(store) == [named(own_name())]
    assert store.delete(path) is True
    assert listed(store) == []


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("words", ["retry+", "fallback+", "cached+", "retry+fallback+cached+"])
def test_what_was_saved_without_them_can_be_read_through_them(words: str, tmp_path: Path) -> None:
    """Also large values, which SQLite keeps once for all checkpoints."""
    store = f"sqlite:///{tmp_path}/runs.db"

    def load(context: TaskExecutionContext) -> None:
        context.get_channel().set("rows", b"row" * 100_000)
        context.checkpoint()

    chain(load, workflow="large", session_id="s", store=store).execute()
    path = CheckpointManager.get_latest("s", store=store)

    context, _ = CheckpointManager.resume_from_checkpoint(f"{words}{path}")

    assert context.get_channel().get("rows") == b"row" * 100_000
    assert CheckpointManager.verify(f"{words}{path}").session_id == "s"


# --- mutated ----------------------------------------------------------------------------


RING = Keyring({"k": bytes(range(32))})
COUNT = 400
ODD: list[Any] = [None, 1, -1, 2**70, 1.5, "", [], {}, "x" * 50, True, [[[1]]], {"a": 1}, "\u00e9\ud800"]
ENCODED: dict[str, Callable[[CheckpointStore], CheckpointStore]] = {
    "encrypted": lambda inner: Encrypted(inner, RING),
    "compressed": Compressed,
    "all": lambda inner: Tenant(Compressed(Encrypted(inner, RING)), "acme"),
}


def changed(rng: random.Random, before: bytes) -> bytes:
    """One bit, one number, or a piece that is gone, added, moved or repeated."""
    data = bytearray(before)
    at, other, size = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 40)
    match rng.randrange(7):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + size]
        case 2:
            data[at:at] = rng.randbytes(size)
        case 3:
            del data[at:]
        case 4:
            data[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f"])
        case 5:
            data[at : at + size] = data[other : other + size]
        case _:
            del data[:at]
    return bytes(data)


def changed_document(rng: random.Random, raw: bytes) -> bytes:
    """A meta in which something is something else."""
    document = found = json.loads(raw)
    while True:
        key = rng.choice(list(found))
        if not isinstance(found[key], dict) or not found[key] or rng.random() < 0.3:
            break
        found = found[key]
    found[key] = rng.choice(ODD)
    return json.dumps(document).encode()


@pytest.mark.parametrize("kind", ENCODED)
def test_a_trio_that_was_changed_is_the_same_or_refused(kind: str) -> None:
    rng, inner = random.Random(7), MemoryStore("memory://mutated")
    inner.forget()
    store = ENCODED[kind](inner)
    values = [f"value {number}" for number in range(15_000)]
    made = state("s", ("put", "v", Live(values), -1))
    path = save(Path(), of=made, store=store, path=f"{store.folder}/best", ring=RING).path
    below, raw = next(iter(inner.list()))
    stage = json.loads(raw)["stage"]
    parts = {part: all_of(inner.open(below, part, stage)) for part in ("pkl", "state.json")}
    parts["meta.json"] = raw

    refused = 0
    for _ in range(COUNT):
        part = rng.choice(list(parts))
        change = changed_document if part == "meta.json" and rng.random() < 0.6 else changed
        written = {**parts, part: change(rng, parts[part])}
        given = [(name, writer(data)) for name, data in written.items()]
        inner.put(below, given, lease=None, stage=stage)
        try:
            found, context = archive.load(store, RING, path)
        except CheckpointError:
            refused += 1
        else:
            assert context.payload["live"]["v"] == values
            assert found.metadata.argv == ["prog.py"]
        known = inventory(store)
        assert len(known.cuts) + len(known.unreadable) == len(store.newest(5)) == 1

    assert refused > COUNT / 2


def test_a_journal_that_was_changed_is_its_beginning_or_damaged_or_refused() -> None:
    rng = random.Random(3)
    frames = journal.Writer(RING, "s", 1, 0, (AEAD,))
    records = [journal.pack(number, 1.0, []) for number in range(1, 7)]
    raw = b"".join([frames.head, *map(frames.frame, records)])

    damaged = 0
    for _ in range(COUNT):
        found = list[bytes]()
        try:
            found += journal.read(RING, "s", 1, 0, changed(rng, raw), (AEAD,))
        except JournalDamaged:
            damaged += 1
        except CheckpointError:
            continue
        assert found == records[: len(found)]
    assert damaged > COUNT / 10

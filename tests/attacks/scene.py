"""The scene of an attack: two sessions in a store, as their owners left them.

`victim` and `other` have three checkpoints each, under one key, and the victim a journal after its last
one. The attacker can write whatever he likes where they lie (`plant`, `plant_journal`), and has every
byte that was ever there; what he does not have is the key, nor the victim's home.

Not here: what he does (the kinds), and who finds out (attempts.py).
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.program.program import Program, current_tasks, describe, pack_code
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.protocols import Buffer, CheckpointStore
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import Head, head_key
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.names import contents_in
from tests import things
from tests.object_servers import CREDENTIALS, object_server
from tests.servers import Server
from tests.trios import all_of, own_name, path_of, writer
from tests.unit.checkpoint import trios

RING = trios.RING
COUNT = 3
BIG = 70_000  # what stores that share values keep beside the files
Parts = dict[str, bytes]
PlantJournal = Callable[[str, int, int, bytes], None]
"""(session, epoch, after, bytes) -> they are there as that segment, and no other one of the session is."""

PlantOwner = Callable[[str, bytes], None]
"""(session, bytes) -> they are what the store finds where it has written who owns the session."""

PlantContents = Callable[[Callable[[bytes], bytes]], Callable[[], None]]
"""What checkpoints of the store share is changed so; what comes back puts it right again."""


class Thing:
    """A value that takes a pickle."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]  # values that are compared need none


class Scene:
    """Everything that the attacker finds, and what the victim would find without him."""

    def __init__(
        self,
        store: CheckpointStore,
        plant_journal: PlantJournal | None,
        plant_owner: PlantOwner | None = None,
    ) -> None:
        self.store = store
        self.plant_journal = plant_journal
        self.plant_owner = plant_owner
        self.plant_contents: PlantContents | None = None
        self.truth: dict[str, Any] = {}  # by checkpoint id: what its sealed bytes mean
        self.parts: dict[tuple[str, int], Parts] = {}
        self.shared: dict[str, bytes] = {}  # contents by name
        for session in ("victim", "other"):
            self._live(session)
        self.records = [(n, trios_ops(n)) for n in range(3, 8)]
        self.segment = segment("victim", 1, 2, self.records)
        self.states = self._states()
        self.put_back()

    def path(self, number: int = COUNT, session: str = "victim") -> str:
        return path_of(self.store, own_name(session, number))

    def plant(self, path: str, parts: Parts, stage: str) -> None:
        """Put bytes where a checkpoint is, as anybody can who may write there."""
        order = [part for part in ("pkl", "state.json", "meta.json") if part in parts]
        self.store.put(path, [(part, writer(parts[part])) for part in order], lease=None, stage=stage)

    def put_back(self, number: int = COUNT) -> None:
        """With what it shares with others, should that have gone with the last of them."""
        parts, path = self.parts["victim", number], self.path(number)
        shared = set(contents_in(parts["meta.json"]))
        try:
            self.plant(path, parts, stage_of(parts))
            return
        except CheckpointError:
            if self.store.contents is None or not shared:
                raise
        saving = self.store.contents.saving(path, lease=None, stage=stage_of(parts))
        try:
            for name in shared - set(saving.hold(sorted(shared))):
                saving.add(name, len(self.shared[name]), [self.shared[name]])
            saving.settle()
            self.plant(path, parts, stage_of(parts))
        finally:
            saving.end()

    def of(self, session: str, number: int) -> Parts:
        return dict(self.parts[session, number])

    def _live(self, session: str) -> None:
        graph = trios.graph()
        program = Program(describe(graph, current_tasks(graph)), pack_code(graph), "prog.py", ("p",), "w")
        for number in range(1, COUNT + 1):
            big = encode(bytes([number % 2]) * BIG)  # two of the three have it in common
            ops = [("put", "live", Live(Thing(number)), -1), ("put", "big", big, -1)]
            state = trios.state(session, *ops)
            state.sequence = 2
            snapshot = capture(state)
            snapshot.facts["epoch"] = 1
            metadata = metadata_of(
                snapshot,
                program,
                path=self.path(number, session),
                sequence=number,
                cause="request",
                user={"number": number},
            )
            archive.save(self.store, RING, None, snapshot, program, metadata)
            path = self.path(number, session)
            meta = self.store.meta(path)
            stage = stage_of({"meta.json": meta})
            self.parts[session, number] = {
                part: all_of(self.store.open(path, part, stage)) for part in ("pkl", "state.json")
            } | {"meta.json": meta}
            for name in contents_in(meta) if self.store.contents is not None else ():
                self.shared[name] = all_of(self.store.contents.open(path, name, stage))
            self.truth[metadata.checkpoint_id] = meaning(archive.load(self.store, RING, path))

    def _states(self) -> list[Any]:
        """What the session may be after some of the records, from none to all."""
        from graflow_ckpt.core.apply import apply

        _, context = archive.load(self.store, RING, self.path())
        state = context.session.state
        state.sequence = 2
        found = [dump(state)]
        for _, ops in self.records:
            apply(state, ops, 0.0)
            found.append(dump(state))
        return found


def trios_ops(number: int) -> list[Any]:
    return [("put", "step", bytes([number]), -1), ("put", "live", Live(Thing(number * 10)), -1)]


def segment(session: str, epoch: int, after: int, records: list[Any]) -> bytes:
    """The bytes of a journal that the owner has written."""
    made = journal.Writer(RING, session, epoch, after)
    return made.head + b"".join(made.frame(journal.pack(n, 0.0, ops)) for n, ops in records)


def stage_of(parts: Parts) -> str:
    import json

    return str(json.loads(parts["meta.json"])["stage"])


def meaning(loaded: tuple[archive.Found, Any]) -> Any:
    """All that a checkpoint has brought back."""
    found, context = loaded
    return copy.deepcopy((found.meta, found.facts, dump(context.session.state)))


def dump(state: Any) -> Any:
    values = {
        name: cell.value if isinstance(cell, Live) else cell for name, (cell, _) in state.values.items()
    }
    return copy.deepcopy((state.session, state.sequence, values, list(state.completed), state.status))


__all__ = ["COUNT", "RING", "Buffer", "Parts", "Scene", "Thing", "dump", "meaning", "segment", "stage_of"]


# --- where the scene lies ---------------------------------------------------------------


class _InFolder(Scene):
    """Without a sync: what a power cut would do to the attacker's files is not the question."""

    def plant(self, path: str, parts: Parts, stage: str) -> None:
        for part, data in parts.items():
            Path(f"{path.removesuffix('.pkl')}.{part}").write_bytes(data)


@contextmanager
def local(folder: Path) -> Iterator[Scene]:
    store = LocalStore(folder / "checkpoints")

    def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
        for old in (folder / "checkpoints").glob(f".{session}.*.journal"):
            old.unlink()
        (folder / "checkpoints" / f".{session}.{epoch}.{after}.journal").write_bytes(raw)

    def owner(session: str, raw: bytes) -> None:
        (folder / "checkpoints" / f".{session}.owner").write_bytes(raw)

    yield _InFolder(store, journal, owner)


def _in(store: KeyedStore) -> Scene:
    """A keyed store: everything in it is under a key."""

    def journal(session: str, epoch: int, after: int, raw: bytes) -> None:
        things.plant_segment(store, session, epoch, after, (raw[: len(raw) // 2], raw[len(raw) // 2 :]))

    def owner(session: str, raw: bytes) -> None:
        head = raw
        with contextlib.suppress(ValueError, RecursionError):  # else it is the whole head
            said = json.loads(raw)
            field = _FIELDS[len(raw) % len(_FIELDS)]
            head = json.dumps(json.loads(Head(claim="x").encode()) | {field: said}).encode()
        things.write(store, head_key(session), head + b"\n")

    scene = Scene(store, journal, owner)
    scene.plant_contents = lambda change: things.spoil(store, things.keys_of_contents(store), change)
    return scene


_FIELDS = (
    "owner", "epoch", "checkpoints", "announced", "segments", "seconds", "pins", "freed", "bad", "n", "last",
    "claim", "write", "pages", "format",
)  # fmt: skip


@contextmanager
def memory(folder: Path) -> Iterator[Scene]:
    store = MemoryStore(f"memory://{uuid.uuid4().hex}")
    yield _in(store)
    things.drop(store, things.keys(store))


@contextmanager
def sqlite(folder: Path) -> Iterator[Scene]:
    store = SqliteStore(f"sqlite:///{folder / 'checkpoints.db'}")
    yield _in(store)
    store.close()


@contextmanager
def on_redis(folder: Path) -> Iterator[Scene]:
    with Server() as server:
        yield _in(RedisStore(server.url))


@contextmanager
def postgres(folder: Path) -> Iterator[Scene]:
    from tests.postgres_servers import PostgresServer

    with PostgresServer() as server:
        store = PostgresStore(server.database())
        store.schema.upgrade()
        yield _in(store)
        store.close()


@contextmanager
def objects(folder: Path) -> Iterator[Scene]:
    os.environ.update(CREDENTIALS)
    with object_server() as server:
        yield _in(ObjectStore(server.url))


PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Scene]]] = {
    "local": local,
    "memory": memory,
    "sqlite": sqlite,
    "redis": on_redis,
    "postgres": postgres,
    "objects": objects,
}
"""By name. Each is empty before, and gone after."""

"""A trio of a test's own making, and a reader that tells which one it found.

The parts name the checkpoint that they belong to all through, and meta has their digests; the
reader does what the real one does, by the store's public calls only.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.core.protocols import PartWriter, Sink
from graflow_ckpt.stores.files import store as local
from graflow_ckpt.stores.files import trio
from graflow_ckpt.stores.files.store import LocalStore
from tests.crash.crash_states import (
    MODELS,
    Call,
    MakeFolder,
    Model,
    RecordingDisk,
    Rename,
    SyncFolder,
    Tree,
    Unlink,
    crash_states,
)

NOTHING = "nothing"
CORRUPT = "corrupt"


def parts(tag: str, size: int = 40) -> list[tuple[str, PartWriter]]:
    """The parts of checkpoint `tag`, whose staging id is the tag."""
    bodies = {part: (f"{tag} {part} " * size)[:size].encode() for part in ("pkl", "state.json")}
    meta = json.dumps(
        {"stage": tag, "sums": {part: [size, zlib.crc32(body)] for part, body in bodies.items()}}
    )

    def writer(data: bytes) -> PartWriter:
        def write(sink: Sink) -> None:
            sink.write(data)

        return write

    return [(part, writer(body)) for part, body in bodies.items()] + [("meta.json", writer(meta.encode()))]


def read(store: LocalStore, path: str, tries: int = 50) -> str:
    """The tag of the checkpoint at `path`, NOTHING, or CORRUPT."""
    for _ in range(tries):
        try:
            raw = store.meta(path)
        except CheckpointNotFound:
            return NOTHING
        try:
            meta = json.loads(raw)
            if all(
                _sum(store, path, part, meta["stage"]) == tuple(found) for part, found in meta["sums"].items()
            ):
                return str(meta["stage"])
        except (ValueError, CheckpointCorrupt, CheckpointNotFound):
            pass
        if _meta_or_none(store, path) == raw:
            return CORRUPT
    return CORRUPT


def read_naively(store: LocalStore, path: str) -> str:
    """What a reader finds that looks under the final names only."""
    try:
        found = json.loads(store.meta(path))
        if all(_sum(store, path, part, "") == tuple(found["sums"][part]) for part in found["sums"]):
            return str(found["stage"])
    except CheckpointNotFound:
        return NOTHING
    except ValueError:
        pass
    return CORRUPT


def _sum(store: LocalStore, path: str, part: str, stage: str) -> tuple[int, int]:
    source = store.open(path, part, stage)
    try:
        buffer = bytearray(source.size + 1)
        size = source.readinto(memoryview(buffer))
        return size, zlib.crc32(buffer[:size])
    finally:
        source.close()


def _meta_or_none(store: LocalStore, path: str) -> bytes | None:
    try:
        return store.meta(path)
    except CheckpointNotFound:
        return None


# --- what can happen to a trio, and the judge who reads every state that it can leave on a disk ---


# Thousands of small trees are laid out; what they are read from does not matter.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

OWN = "/c/session_s_step_1_1700000000-1.pkl"  # a path of session s
ANY = "/c/best.pkl"
DEEP = "/c/runs/7/best.pkl"

Reader = Callable[[LocalStore, str], str]


class Stage:
    """A disk that is being written to, by one process after another."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.disk = RecordingDisk(self.root)

    def process(self) -> LocalStore:
        return LocalStore(f"{self.root}/c", disk=self.disk)

    def put(self, path: str, tag: str, store: LocalStore | None = None) -> None:
        (store or self.process()).put(self.root + path, parts(tag), lease=None, stage=tag)
        self.disk.promise(tag)

    def put_half(self, path: str, tag: str) -> None:
        """Died before the commit: staged files stay behind."""
        with self.disk.dying(lambda call, _: isinstance(call, Rename)):
            self.put(path, tag)

    def put_unsynced(self, path: str, tag: str) -> None:
        """Committed, but its writer died before the sync that makes it durable."""
        with self.disk.dying(lambda _, before: count(Rename, before) == 1):
            self.put(path, tag)

    def put_unrolled(self, path: str, tag: str) -> None:
        """Committed and durable, but its writer died before the others got their final names."""
        with self.disk.dying(lambda call, before: isinstance(call, Rename) and count(Rename, before) == 1):
            self.put(path, tag)

    def delete(self, path: str) -> None:
        self.process().delete(self.root + path)
        self.disk.promise(NOTHING)

    def delete_half(self, path: str) -> None:
        with self.disk.dying(lambda call, _: isinstance(call, Unlink)):
            self.delete(path)

    def sweep(self, promise: str) -> None:
        protocol: ModuleType = vars(local)["trio"]  # the one that is being judged
        protocol.sweep(self.disk, f"{self.root}/c", lambda _: nullcontext(True))
        self.disk.promise(promise)

    def acquire(self, promise: str) -> None:
        self.process().acquire("s")
        self.disk.promise(promise)


def count(kind: type, calls: Sequence[Call]) -> int:
    return sum(isinstance(call, kind) for call in calls)


@dataclass(frozen=True)
class Scenario:
    """`before` is safe on the disk, `act` is cut short. What may be found until a promise was made."""

    name: str
    before: Callable[[Stage], object]
    act: Callable[[Stage], object]
    until: frozenset[str]
    path: str = ANY


def made_and_killed(stage: Stage, path: str) -> None:
    with stage.disk.dying(
        lambda call, before: isinstance(call, SyncFolder) and count(MakeFolder, before) > 0
    ):
        stage.put(path, "lost")


def chain(*steps: Callable[[Stage], object]) -> Callable[[Stage], object]:
    def run(stage: Stage) -> None:
        for step in steps:
            step(stage)

    return run


SCENARIOS = [
    Scenario(
        "a first checkpoint",
        lambda s: s.process().probe(),
        lambda s: s.put(ANY, "new"),
        frozenset({NOTHING, "new"}),
    ),
    Scenario(
        "a first one, folders made",
        lambda s: None,
        lambda s: s.put(DEEP, "new"),
        frozenset({NOTHING, "new"}),
        DEEP,
    ),
    Scenario(
        "a first one, folder made by a dead process",
        lambda s: s.process().probe(),
        chain(lambda s: made_and_killed(s, "/c/x/best.pkl"), lambda s: s.put("/c/x/best.pkl", "new")),
        frozenset({NOTHING, "new"}),
        "/c/x/best.pkl",
    ),
    Scenario(
        "overwriting", lambda s: s.put(ANY, "old"), lambda s: s.put(ANY, "new"), frozenset({"old", "new"})
    ),
    Scenario(
        "overwriting one not rolled forward",
        lambda s: s.put_unrolled(ANY, "old"),
        lambda s: s.put(ANY, "new"),
        frozenset({"old", "new"}),
    ),
    Scenario(
        "overwriting beside what a dead writer staged",
        chain(lambda s: s.put(ANY, "old"), lambda s: s.put_half(ANY, "half")),
        lambda s: s.put(ANY, "new"),
        frozenset({"old", "new"}),
    ),
    Scenario(
        "overwriting one whose writer died at the commit",
        lambda s: s.put_unrolled(ANY, "old"),
        chain(lambda s: s.put_unsynced(ANY, "mid"), lambda s: s.put(ANY, "new")),
        frozenset({"old", "mid", "new"}),
    ),
    Scenario(
        "a new owner after a death at the commit",
        lambda s: s.put_unrolled(OWN, "old"),
        chain(lambda s: s.put_unsynced(OWN, "new"), lambda s: s.acquire("new")),
        frozenset({"old", "new"}),
        OWN,
    ),
    Scenario(
        "sweeping after a death at the commit",
        lambda s: s.put_unrolled(ANY, "old"),
        chain(lambda s: s.put_unsynced(ANY, "new"), lambda s: s.sweep("new")),
        frozenset({"old", "new"}),
    ),
    Scenario("deleting", lambda s: s.put(ANY, "old"), lambda s: s.delete(ANY), frozenset({"old", NOTHING})),
    Scenario(
        "deleting one not rolled forward",
        lambda s: s.put_unrolled(ANY, "old"),
        lambda s: s.delete(ANY),
        frozenset({"old", NOTHING}),
    ),
    Scenario(
        "a new owner after a death while deleting",
        lambda s: s.put_unrolled(OWN, "old"),
        chain(lambda s: s.delete_half(OWN), lambda s: s.acquire(NOTHING)),
        frozenset({"old", NOTHING}),
        OWN,
    ),
]


# --- the judge ---------------------------------------------------------------------------


@dataclass
class Verdict:
    states: int = 0
    bad: int = 0
    example: str = ""

    def __str__(self) -> str:
        return f"{self.bad}/{self.states}"


_read_before: dict[tuple[Tree, str, str], str] = {}  # a tree reads the same whoever left it


def judge(scenario: Scenario, *, reader: Reader = read, protocol: ModuleType = trio) -> dict[Model, Verdict]:
    """Run the writer once, then read every state that its calls can leave."""
    before, calls = record(scenario, protocol)
    return weigh(scenario, before, calls, reader)


def record(scenario: Scenario, protocol: ModuleType = trio) -> tuple[Tree, list[Call]]:
    """`protocol` takes the place of files/trio.py while the scenario acts; what was before is sound."""
    with TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        stage = Stage(Path(folder))
        scenario.before(stage)
        before = Tree.of(stage.root)
        stage.disk.calls.clear()
        patch.setattr(local, "trio", protocol)
        scenario.act(stage)
        return before, stage.disk.calls


def faults(
    scenario: Scenario, before: Tree, calls: list[Call], model: Model, reader: Reader = read
) -> Iterator[str]:
    """What is wrong with each state that these calls can leave; "" if nothing is."""
    for promised, tree in crash_states(before, calls, model):
        found = look(tree, scenario.path, reader)
        good = found == promised if promised is not None else found in scenario.until
        names = [] if good else sorted(path for path, _ in tree.files)
        yield "" if good else f"{scenario.name}: promised {promised}, found {found} in {names}"


def weigh(scenario: Scenario, before: Tree, calls: list[Call], reader: Reader = read) -> dict[Model, Verdict]:
    verdicts = {model: Verdict() for model in MODELS}
    for model, verdict in verdicts.items():
        for fault in faults(scenario, before, calls, model, reader):
            verdict.states += 1
            verdict.bad += bool(fault)
            verdict.example = verdict.example or fault
    return verdicts


def look(tree: Tree, path: str, reader: Reader) -> str:
    key = (tree, path, reader.__name__)
    if key not in _read_before:
        with TemporaryDirectory(dir=MEMORY) as root:
            tree.lay_out(root)
            _read_before[key] = reader(LocalStore(f"{root}/c"), root + path)
    return _read_before[key]


def first_fault(protocol: ModuleType) -> str:
    """What convicts a protocol first; "" if nothing does."""
    recorded = ((scenario, *record(scenario, protocol)) for scenario in SCENARIOS)
    each = (faults(scenario, before, calls, "subset") for scenario, before, calls in recorded)
    return next(filter(None, itertools.chain.from_iterable(each)), "")


# --- mutants of a protocol, which a judge has to convict ----------------------------------


SYNCS = ("disk.sync", "disk.sync_folder")


class _WithoutSync(ast.NodeTransformer):
    """Makes the sync of one line a constant."""

    def __init__(self, line: int) -> None:
        self.line = line

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.lineno == self.line and ast.unparse(node.func).endswith(SYNCS):
            return ast.copy_location(ast.Constant(True), node)
        return self.generic_visit(node)


def without_sync(module: ModuleType) -> dict[str, ast.Module]:
    """The source of a protocol, each time without another one of its syncs."""
    source = inspect.getsource(module)
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {
        f"line {call.lineno}: no {ast.unparse(call)}": _WithoutSync(call.lineno).visit(ast.parse(source))
        for call in calls
        if ast.unparse(call.func).endswith(SYNCS)
    }


def mutant_of(module: ModuleType, source: ast.Module) -> ModuleType:
    made = ModuleType(module.__name__)
    with pytest.MonkeyPatch.context() as patch:  # dataclasses look there
        patch.setitem(sys.modules, module.__name__, made)
        exec(compile(ast.fix_missing_locations(source), "<mutant>", "exec"), made.__dict__)
    return made

"""Attacks on what a store itself has written, and on the names that lead to it."""

from __future__ import annotations

import io
import json
import os
from functools import cache
from random import Random
from typing import Any

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.checkpoint.care.pruning import Guard, plan
from graflow_ckpt.checkpoint.model import CheckpointMetadata, parse
from graflow_ckpt.checkpoint.retention import DeleteOnSuccess, KeepLast, OfAll
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.core import conditions
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores import open_store_of, store_of
from graflow_ckpt.stores.files.leftovers import strays
from graflow_ckpt.stores.keyed import KeyedStore
from tests import things
from tests.attacks.attempts import (
    HUGE,
    SAME,
    Breach,
    any_of,
    attack,
    cut,
    deep,
    edited,
    flipped,
    goes_on,
    odd,
    spelled,
)
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import RING, Scene
from tests.trios import path_of

_OWNER = {
    "pid": 1, "started": "1", "boot": "b", "pid_ns": "n", "host": "h", "argv": "a", "since": "s",
}  # fmt: skip


@attack("who owns the session is nonsense")
def owner(scene: Scene, rng: Random) -> str:
    assert scene.plant_owner is not None
    record = {"turn": 1, "epoch": 3, "owner": _OWNER, "lines": [[2, 1]]}
    huge = [[rng.choice(HUGE), rng.choice(HUGE)]]
    raw = any_of(
        rng,
        lambda: json.dumps(edited(rng, record)).encode(),
        lambda: json.dumps(edited(rng, _OWNER)).encode(),
        lambda: json.dumps(rng.choice((odd(rng), huge, [[1]], [["a", "b"]], {"epoch": odd(rng)}))).encode(),
        lambda: deep(rng)[:8000],
        lambda: rng.randbytes(30),
        lambda: b"2:1",
        lambda: b"x:y",
    )
    scene.plant_owner("attacked", raw)
    first: GraflowError | None = None
    for look in (scene.store.owner, scene.store.acquire):
        try:
            found = look("attacked")
            if look == scene.store.acquire:
                found.release()  # type: ignore[union-attr]
        except GraflowError as error:
            first = first or error
    if first is not None:
        raise first
    return SAME


_KEYS = (
    "x", "x/y", "1-x", "1-x/y/z", "-1-0-x/0000000000", "0-x/000000", "999999999999999999999-x/m.x", "/", "//",
    "0000000001-x-y/0000000000", "0000000001-000000000002-y/x", "0000000001-000000000002-y", "1-\u00b2/0",
    "=/=",
)  # fmt: skip


@attack("a key that the store has not made")
def odd_key(scene: Scene, rng: Random) -> str:
    store = scene.store
    if not isinstance(store, KeyedStore):
        return SAME  # names of files: `no_file`
    key = f"{rng.choice(('data', 'journal', 'lease'))}/victim/{rng.choice(_KEYS)}"
    head = rng.choice(("head/", "head/\u00b2", "head/a b", "head/@", "head/@=", key))
    for one in {key, head}:
        things.write(store, one, rng.randbytes(9))
    try:
        list(strays(store) or ())
        list(store.list())
        list(store.segments("victim"))
        assert store.contents is not None
        store.contents.sweep()
        store.acquire("victim").release()
        return goes_on(scene)
    finally:
        things.drop(store, {key, head})


_NAMES = (
    "../outside", "../../outside", "/etc/outside", "a/../../outside", "..", ".", "", "\0", "a\0b", "x" * 300,
    "session_../x_step_1_1-1", "%2e%2e/outside", "~/outside", "a?b", "a\nb", "\x1b[2J", "*", "[a]", "{@}",
)  # fmt: skip


@attack("a name that leads elsewhere")
def named(scene: Scene, rng: Random) -> str:
    name = rng.choice(_NAMES)
    path = path_of(scene.store, name)
    before = set(scene.store.list())
    if scene.store.takes(path) is None:  # another store's: it has to say so, or have nothing there
        open_store_of(path).meta(path) if store_of(path) != scene.store.folder else None
        return SAME
    archive.load(scene.store, RING, path)
    if set(scene.store.list()) != before:
        raise Breach("looking has changed something")
    return SAME


@attack("a session that is called like a path")
def session_named(scene: Scene, rng: Random) -> str:
    name = rng.choice((*_NAMES, "*", "a:b", "{x}", "é", "a" * 65, "a b"))
    look = rng.choice((scene.store.acquire, scene.store.owner, scene.store.segments))
    found = look(name)
    list(found) if hasattr(found, "__next__") else None
    raise Breach(f"a session may be called {name!r}")


@attack("a link, a pipe or a device in the place of a file")
def no_file(scene: Scene, rng: Random) -> str:
    folder = scene.store.folder
    if "://" in folder:
        return SAME  # there are no files
    part = rng.choice(("pkl", "state.json", "meta.json"))
    file = f"{scene.path().removesuffix('.pkl')}.{part}"
    os.unlink(file)
    try:
        match rng.randrange(6):
            case 0:
                os.symlink("/etc/passwd", file)
            case 1:
                os.symlink("/dev/zero", file)
            case 2:
                os.mkfifo(file)
            case 3:
                os.mkdir(file)
            case 4:
                os.symlink(file, file)
            case _:
                os.symlink("/dev/stdin", file)
        list(scene.store.list("victim"))
        archive.load(scene.store, RING, scene.path())
        raise Breach("what is no file of the session was opened")
    finally:
        os.rmdir(file) if os.path.isdir(file) else os.unlink(file)
        scene.put_back()


# --- attacks on what is only looked at --------------------------------------------------


class _Bytes(io.BytesIO):
    """A part as a store gives it."""

    @property
    def size(self) -> int:
        return self.getbuffer().nbytes


@attack("a pickle that is looked at without being opened")
def looked_at(scene: Scene, rng: Random) -> str:
    data = rng.choice((GADGETS[rng.choice(list(GADGETS))], scene.of("victim", 3)["pkl"]))
    if rng.random() < 0.7:
        data = rng.choice((flipped, cut))(rng, data)
    value: Any = inert.load(_Bytes(data))  # type: ignore[arg-type]  # its readinto takes more than is needed
    inert.weigh(value)
    inert.plainer(value)
    return SAME


_WORDS = (
    "a", "b.c", "b['c']", "n", "len", "max(", "min(", "sum(", "(", ")", "[", "]", ",", ".", "+", "-", "*",
    "**", "//", "%", "<", "==", "and", "or", "not", "in", "is", "if", "else", "for", "lambda:", ":=", "'x'",
    "9" * 50, "1e99", "__class__", "__import__('os')", "a.__init__", "f'{a}'", "{", "}", ":", "*a", "**b",
    "await", "0", "1", "2", "()",
)  # fmt: skip


class _Loud:
    """An object of a class that nobody vouches for."""

    def __eq__(self, other: object) -> bool:
        from tests.attacks import canary

        canary.sing("compared")
        return True

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        from tests.attacks import canary

        canary.sing("asked")
        return True

    __len__ = __lt__ = __contains__ = __add__ = __getattr__ = lambda self, *_: self.__bool__()


@cache
def _values() -> dict[str, Any]:
    return {"a": _Loud(), "b": {"c": [1, 2, 3]}, "n": 7}


@attack("an expression that wants more than it may")
def expression(scene: Scene, rng: Random) -> str:
    text = any_of(
        rng,
        lambda: " ".join(rng.choice(_WORDS) for _ in range(rng.randrange(1, 12))),
        lambda: "(" * rng.choice((50, 5000)) + "a",
        lambda: "not " * 400 + "n",
        lambda: "-" * 1900 + "n",
        lambda: "9**" * rng.choice((3, 300)) + "9",
        lambda: "'x'" + "+'x'" * 300,
        lambda: "b.c" + "[0:]" * 400,
        lambda: rng.choice(
            ("a == 1", "a or 1", "not a", "a in b", "a + a", "len(a)", "a.b", "[a] == [1]", "a < a")
        ),
        lambda: "\0",
        lambda: rng.choice(
            ("().__class__", "a.__dict__", "(lambda: 1)()", "[x for x in b]", "n.real", "'{}'.format")
        ),
    )
    conditions.parse(text).evaluate(_values())
    return SAME


# --- those who look without opening -----------------------------------------------------


def _bad(rng: Random, document: dict[str, Any]) -> bytes:
    return any_of(
        rng,
        lambda: flipped(rng, json.dumps(document).encode()),
        lambda: cut(rng, json.dumps(document).encode()),
        lambda: json.dumps(edited(rng, document)).encode(),
        lambda: spelled(rng, document),
        lambda: deep(rng),
        lambda: json.dumps(document | {"sequence": 9, "status": "completed"}).encode(),
        lambda: json.dumps({name: odd(rng) for name in document}).encode(),
    )


@attack("a list in which one is bad")
def listed(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 2)
    scene.plant(scene.path(2), parts | {"meta.json": _bad(rng, json.loads(parts["meta.json"]))}, "bad")
    try:
        errors = []
        for path, raw in scene.store.list():
            try:
                CheckpointMetadata.from_document(path, parse(path, raw, ".meta.json"))
            except GraflowError as error:
                errors.append(error)
        found = inventory(scene.store)
        going = set[str]()
        for retention in (KeepLast(1), OfAll(DeleteOnSuccess())):
            doomed = plan(Guard(scene.store, found, lambda: RING), retention, 2e9)
            going |= {cut.path for cut in doomed.cuts}
        good = {history.newest_path(scene.store, RING, session) for session in ("victim", "other")}
        if good != {scene.path(), scene.path(session="other")}:
            raise Breach(f"the newest good ones are {good}")
        if good & going:
            raise Breach("the newest good one is to be deleted")
        if errors:
            raise errors[0]
        return SAME
    finally:
        scene.put_back(2)


@attack("a checkpoint that somebody is asked to trust")
def shown(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 2)
    meta = json.loads(parts["meta.json"])
    meta["stage"] = rng.choice((meta["stage"], "", "\0", "../" * 30 + "etc/passwd", "x" * 5000, odd(rng)))
    if rng.random() < 0.5:
        parts["pkl"] = flipped(rng, parts["pkl"])
    scene.plant(scene.path(2), parts | {"meta.json": json.dumps(edited(rng, meta)).encode()}, "bad")
    try:
        archive.described(scene.store, scene.path(2))
        return SAME
    finally:
        scene.put_back(2)

"""Attacks on what a store itself has written, and on the names that lead to it."""

from __future__ import annotations

import json
import os
from random import Random

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores import open_store_of, store_of
from graflow_ckpt.stores.files.leftovers import strays
from graflow_ckpt.stores.keyed import KeyedStore
from tests import things
from tests.attacks.attempts import SAME, Breach, attack, goes_on
from tests.attacks.scene import RING, Scene
from tests.attacks.spoiling import HUGE, deep, edited, odd
from tests.trios import path_of

_OWNER = {
    "pid": 1, "started": "1", "boot": "b", "pid_ns": "n", "host": "h", "argv": "a", "since": "s",
}  # fmt: skip


@attack("who owns the session is nonsense")
def owner(scene: Scene, rng: Random) -> str:
    assert scene.plant_owner is not None
    record = {"turn": 1, "epoch": 3, "owner": _OWNER, "lines": [[2, 1]]}
    huge = [[rng.choice(HUGE), rng.choice(HUGE)]]
    raw = rng.choice(
        (
            lambda: json.dumps(edited(rng, record)).encode(),
            lambda: json.dumps(edited(rng, _OWNER)).encode(),
            lambda: json.dumps(
                rng.choice((odd(rng), huge, [[1]], [["a", "b"]], {"epoch": odd(rng)}))
            ).encode(),
            lambda: deep(rng)[:8000],
            lambda: rng.randbytes(30),
            lambda: b"2:1",
            lambda: b"x:y",
        )
    )()
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

"""Attacks on what travels, and on what is only looked at: portable files, inert pickles, expressions."""

from __future__ import annotations

import io
import json
import tempfile
import uuid
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from graflow_ckpt.checkpoint import archive, history, inert
from graflow_ckpt.checkpoint.copying import Move, survey
from graflow_ckpt.checkpoint.portable import PortableFile, PortableWriter
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.conditions import parse
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores.memory import MemoryStore
from tests.attacks.attempts import SAME, Breach, attack
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import RING, Scene, dump, meaning
from tests.attacks.spoiling import HUGE, cut, deep, edited, flipped, odd

_MADE: WeakKeyDictionary[Scene, bytes] = WeakKeyDictionary()


def _exported(scene: Scene) -> bytes:
    """The victim's session as a file, made once."""
    if scene not in _MADE:
        scene.put_journal_back()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "export"
            with PortableWriter(file) as out:
                for number in (1, 2, 3):
                    out.cut(scene.store, RING, scene.path(number))
                out.session(scene.store, "victim")
            _MADE[scene] = file.read_bytes()
    return _MADE[scene]


def _imported(scene: Scene, raw: bytes) -> str:
    """Into an empty store; whatever has arrived there has to be what was sealed."""
    target = MemoryStore(f"memory://{uuid.uuid4().hex}")
    failed: list[GraflowError] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "export"
        file.write_bytes(raw)
        try:
            with PortableFile(file) as origin:
                move = Move(origin, target, RING, RING)
                for session in sorted(survey(origin)):
                    moved = move.session(session)
                    errors = [moved.error, *(copied.error for copied in moved.cuts)]
                    failed += [error for error in errors if error is not None]
        except GraflowError as error:
            failed.append(error)
        if {path.name for path in Path(folder).iterdir()} != {"export"}:
            raise Breach("something was written beside the file")
    try:
        _judge(scene, target)
    finally:
        target.forget()
    if failed:
        raise failed[0]
    return SAME


def _judge(scene: Scene, target: MemoryStore) -> None:
    # what a copy may have otherwise: values that are shared here need not be shared there, and whence it came
    same = ("stage", "home", "seal", "key_id", "synced", "parts", "contents", "copied_from")
    for path, _ in target.list():
        found, facts, state = meaning(archive.load(target, RING, path))
        meta, true_facts, true_state = scene.truth[found["checkpoint_id"]]
        differ = {name for name in found if found[name] != meta.get(name)} - {*same}
        if differ or (facts, state) != (true_facts, true_state):
            raise Breach(f"{path} has arrived as something else: {differ}")
    for _, found in history.newest(target, RING, "victim"):
        assert isinstance(found, archive.Found)
        session = restore(found.facts, archive.open_values(target, found).payload)
        history.replay(target, RING, session, found, "victim")
        if found.meta["sequence"] == 3 and dump(session) not in scene.states:
            raise Breach("records have arrived that nobody had written")
        break


@attack("bytes of a portable file are changed")
def file_spoiled(scene: Scene, rng: Random) -> str:
    return _imported(scene, rng.choice((flipped, cut))(rng, _exported(scene)))


@attack("a portable file that was packed by somebody else")
def file_repacked(scene: Scene, rng: Random) -> str:
    members: list[tuple[str, bytes]] = []
    with zipfile.ZipFile(io.BytesIO(_exported(scene))) as old:
        members = [(name, old.read(name)) for name in old.namelist()]
    at = rng.randrange(len(members))
    name, data = members[at]
    match rng.randrange(7):
        case 0:
            places = (
                "../",
                "/etc/",
                "cuts/../../",
                "cuts/",
                "journals/../../../",
                "journals/other/",
                "\0",
                "cuts//",
            )
            members[at] = (rng.choice(places) + name.rpartition("/")[2], data)
        case 1:
            members[at] = (name, flipped(rng, data) if data else b"x")
        case 2:
            members[at] = (name, rng.choice(members)[1])
        case 3:
            del members[at]
        case 4:
            members = [
                (n, GADGETS[rng.choice(list(GADGETS))] if n.endswith(".pkl") else d) for n, d in members
            ]
        case 5:
            odd_head = rng.choice((lambda head: edited(rng, head), lambda head: odd(rng)))
            members = [
                (n, json.dumps(odd_head(json.loads(d))).encode() if n == "graflow-ckpt.json" else d)
                for n, d in members
            ]
        case _:
            head = rng.choice(
                (deep(rng), b'{"format": 1, "sessions": {"victim": [[%d, 1]]}}' % rng.choice(HUGE))
            )
            members = [(n, head if n == "graflow-ckpt.json" else d) for n, d in members]
    out = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", packing) as new:
        for n, d in members:
            new.writestr(zipfile.ZipInfo(n), d, packing)
    return _imported(scene, out.getvalue())


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
    text = rng.choice(
        (
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
    )()
    parse(text).evaluate(_values())
    return SAME

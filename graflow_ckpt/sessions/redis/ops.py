"""Ops as the arguments of the script that carries them out, and its records as claims.

Values stay opaque: a cell is packed and unpacked by the `Cells` that it is given.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from graflow_ckpt.core.facts import RESULT, Cell, Claim, Live, Op, TaskSpec, Version, new
from graflow_ckpt.sessions.redis.names import check_spec, check_value

Arg = bytes | str | int | float

SMALL = 4096
"""Bytes up to which the size of a plain result is not checked."""


class Cells(Protocol):
    """The conversion of cells to bytes that only holders of the key can make, and back."""

    def pack(self, name: str, cell: Cell, place: str = "") -> bytes: ...

    def unpack(self, name: str, data: bytes, place: str = "") -> Cell: ...

    def seal(self, pickle: bytes, place: str) -> bytes: ...

    def open(self, name: str, data: bytes, place: str) -> bytes: ...


_ONE: Op = ("claim", 1)


def turn(ops: Sequence[Op], cells: Cells, queue: str) -> list[Arg] | None:
    """Return the usual transition for turn.lua, or None: one body succeeded, at most one spec is new."""
    if ops[-1] != _ONE or not 1 < len(ops) < 4:
        return None
    end = ops[0]
    if end[0] != "end" or end[3] != "completed":
        return None
    cell = end[4]
    if type(cell) is Live and cell.bundle:
        return None
    small = type(cell) is bytes and len(cell) < SMALL
    args = [end[1], end[2], queue, cell if small else cells.pack("its result", cell, "result")]
    if len(ops) == 3:
        new = ops[1]
        if new[0] != "enqueue" or new[2] is not None or new[6] != "direct":
            return None
        check_spec(new[1], new[3], new[5])
        args += (new[1], new[3], new[4], new[5])
    return args


REF = b"\xc1\0"
"""What a value in a bundle begins with; its id follows. No seal begins so, for a key's id is not empty."""
_ID = 16


def arguments(ops: Sequence[Op], cells: Cells, queue: str, task_of: Callable[[int], str] = str) -> list[Arg]:
    """Return a transition's checks, then its ops, as step.lua reads them. `task_of`: of a claimed spec."""
    ends: list[Arg] = []
    bases: list[Arg] = []
    args, cells = _bundles(ops, cells, task_of)
    for op in ops:
        kind = op[0]
        if kind == "round":
            ends += (op[1], op[2])
            args += ("U", op[1], op[3], len(op) - 4, *map(check_value, op[4:]))
        elif kind == "end":
            ends += (op[1], op[2])
            if op[3] == "completed":
                cell = op[4]
                small = type(cell) is bytes and len(cell) < SMALL
                args += ("E", op[1], cell if small else cells.pack("its result", cell, "result"))
            else:
                args += _other_end(op)
        elif kind == "claim":
            args += ("C", op[1], queue)
        else:
            if kind == "put" and op[3] != -1:
                bases += (op[1], op[3])
            args += _MAKE[kind](op, cells)
    return [len(ends) // 2, *ends, len(bases) // 2, *bases, *args]


def in_full(args: Sequence[Arg]) -> list[Arg]:
    """Return what `turn` has made, as step.lua reads it."""
    key, number, queue, cell, *new = args
    spec = ("N", new[0], "", *new[1:], "direct") if new else ()
    return [1, key, number, 0, "E", key, cell, *spec, "C", 1, queue]


def strictly(args: Sequence[Arg], seen: Sequence[tuple[str, Version]]) -> list[Arg]:
    """Return what `arguments` has made, refused unless these values are what they were."""
    at = 1 + 2 * int(args[0])
    raw = [(name, version if isinstance(version, bytes) else b"%d" % version) for name, version in seen]
    bases = [item for name, version in raw for item in (name, b"=" + version)]
    return [*args[:at], int(args[at]) + len(seen), *bases, *args[at + 1 :]]


class _References:
    """Cells, but for those that are in a bundle."""

    def __init__(self, cells: Cells, ids: Mapping[int, str]) -> None:
        self._cells, self._ids = cells, ids
        self.seal, self.open, self.unpack = cells.seal, cells.open, cells.unpack

    def pack(self, name: str, cell: Cell, place: str = "") -> bytes:
        if isinstance(cell, Live) and cell.bundle in self._ids:
            return reference(self._ids[cell.bundle])
        return self._cells.pack(name, cell, place)


def _bundles(ops: Sequence[Op], cells: Cells, task_of: Callable[[int], str]) -> tuple[list[Arg], Cells]:
    """Return the ops that write the bundles of a transition, and how its cells are packed beside them."""
    found: dict[int, dict[str, Any]] = {}
    for op in ops:
        name, cell = "", None
        if op[0] == "put":
            name, cell = op[1], op[2]
        elif op[0] == "end" and op[3] == "completed":
            name, cell = "", op[4]
        if isinstance(cell, Live) and cell.bundle:
            found.setdefault(cell.bundle, {})[name or task_of(op[1]) + RESULT] = cell.value
    if not found:
        return [], cells
    ids = {number: new_id() for number in found}
    args = [arg for number, roots in found.items() for arg in bundle(ids[number], roots, cells)]
    return args, _References(cells, ids)


def new_id() -> str:
    """Return the id of a bundle, of this writing and of no other: equal ids are of one moment."""
    return secrets.token_hex(_ID)


def reference(number: str) -> bytes:
    """Return the cell of a value that is in a bundle."""
    return REF + number.encode()


def bundle(number: str, roots: Mapping[str, Any], cells: Cells) -> list[Arg]:
    """Return the op that writes one."""
    names = [check_value(name) for name in roots]
    return ["B", number, pack_bundle(number, roots, cells), len(names), *names]


def pack_bundle(number: str, roots: Mapping[str, Any], cells: Cells) -> bytes:
    return cells.pack(" and ".join(roots), Live(dict(roots)), f"*{number}")


def unpack_bundle(number: str, data: bytes, cells: Cells) -> dict[str, Any]:
    """Return the roots by their names."""
    cell = cells.unpack(f"bundle {number}", data, f"*{number}")
    if not isinstance(cell, Live):
        raise ValueError(f"bundle {number} is no pickle")
    roots: dict[str, Any] = cell.value
    return roots


def referred(cell: bytes) -> str:
    """Return the id of the bundle that a cell refers to, or ""."""
    return cell[len(REF) :].decode() if cell[: len(REF)] == REF else ""


def _other_end(op: Op) -> tuple[Arg, ...]:
    if op[3] == "retry":
        return ("e", op[1], "retry", repr(float(op[4])), op[5])
    return ("e", op[1], op[3], "", op[4] if len(op) > 4 else "")


def _text(words: str) -> bytes:
    """Encode a text for readers: what cannot be sent is shown."""
    return words.encode(errors="backslashreplace")


def _data(op: Op, cells: Cells) -> bytes:
    return b"" if op[2] is None else cells.pack(f"the data of {op[1]}", op[2], f"data {op[1]}")


def _enqueue(op: Op, cells: Cells) -> tuple[Arg, ...]:
    check_spec(op[1], op[3], op[5])
    return ("N", op[1], _data(op, cells), *op[3:])


def _later(op: Op, cells: Cells) -> tuple[Arg, ...]:
    check_spec(op[1], op[3], op[5])
    return ("L", op[1], _data(op, cells), *op[3:7], repr(float(op[7])))


def _arrive(op: Op, cells: Cells) -> tuple[Arg, ...]:
    check_spec(op[1], op[5], op[7])
    return ("R", *op[1:])


_MAKE: dict[str, Callable[[Op, Cells], Sequence[Arg]]] = {
    "put": lambda op, cells: ("P", check_value(op[1]), cells.pack(op[1], op[2])),
    "append": lambda op, cells: ("A", check_value(op[1]), cells.pack(op[1], op[2])),
    "enqueue": _enqueue,
    "later": _later,
    "arrive": _arrive,
    "expect": lambda op, cells: ("X", *op[1:]),
    "toward": lambda op, cells: ("J", *op[1:]),
    "skipped": lambda op, cells: ("S", op[1]),
    "status": lambda op, cells: ("T", op[1], _text(op[2])),
    "task": lambda op, cells: ("M", op[1], cells.seal(op[2], f"task {op[1]}")),
    "rng": lambda op, cells: ("G", cells.pack("rng", op[1], "rng")),
    "cap": lambda op, cells: ("K", "" if op[1] is None else op[1]),
    "reopen": lambda op, cells: ("o", op[1], "" if op[2] is None else op[2]),
    "release": lambda op, cells: ("r", op[1], op[2]),
    "doubt": lambda op, cells: ("d", op[1], op[2]),
    "quarantine": lambda op, cells: ("q", op[1], _text(op[2])),
    "answer": lambda op, cells: ("w", op[1], op[2]),
    "again": lambda op, cells: ("a", len(op) - 1, *op[1:]),
    "absorb": lambda op, cells: ("b", op[1], op[2]),
    "clear": lambda op, cells: ("c",),
}


def claim_of(record: bytes, cells: Cells) -> Claim:
    """Return a claim as the script sends it: number, where its loops are or a token, spec."""
    number, where, key, name, rest = record.split(b"\x1f", 4)
    rounds = where.decode() if where[:1] == b"[" else ""
    return new(Claim, (_spec(key, name, rest, cells), int(number), rounds))


def spec_of(spec: bytes, cells: Cells) -> TaskSpec:
    """Return a spec from its bytes in the queue."""
    key, name, rest = spec.split(b"\x1f", 2)
    return _spec(key, name, rest, cells)


def _spec(key: bytes, name: bytes, rest: bytes, cells: Cells) -> TaskSpec:
    global _latest
    task, data, known = name.decode(), None, _latest  # looked at once: other threads replace it
    if not rest.startswith(known[0]):
        known = _latest = _words_of(rest[: len(rest) - len(rest.split(b"\x1f", 8)[8])])
    raw, words, crashes = known
    if packed := rest[len(raw) :]:
        data = cells.unpack("data", packed, f"data {task}")
    return new(TaskSpec, (task, data, *words, int(key), crashes))


_Words = tuple[bytes, tuple[Any, ...], int]
_latest: _Words = (b"\x1f", (), 0)  # most specs differ from the one before in key, task and data alone
_KINDS: tuple[Callable[[bytes], Any], ...] = (int, int, int, bytes.decode, int, float, bytes.decode)


@lru_cache(1000)
def _words_of(raw: bytes) -> _Words:
    *words, crashes, _ = raw.split(b"\x1f")
    return raw, ("pending", *[kind(w) for kind, w in zip(_KINDS, words, strict=True)]), int(crashes)

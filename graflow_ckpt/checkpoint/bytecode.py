"""What a code object says, apart from where it stands.

`Shapes.of(code)` gives a digest of the instructions, names, constants and parameters, nested
code included, and what a fingerprint has to look at beyond the code: the globals that it loads,
the ones it rebinds, the modules it imports. Line numbers, file and qualified names, docstrings
and the order of constants are not in it; a docstring that comes or goes moves nothing (but in a
function of more than 255 constants, whose numbers then need another instruction).

One pass over the raw bytes, and only over the few instructions that matter: `dis` would take a
hundred times as long. Not here: what the names are bound to (fingerprint.py). A digest has a
meaning within one Python minor only, for the instructions are that minor's own.
"""

from __future__ import annotations

import marshal
import opcode
import re
import sys
from functools import lru_cache
from hashlib import blake2b
from types import CodeType
from typing import Any, NamedTuple

_MARSHAL = 2  # the last format without back references: equal values give equal bytes
_PLACE = frozenset({"__doc__", "__qualname__", "__firstlineno__", "__static_attributes__"})
# Varargs, varkeywords, generator, coroutine, iterable coroutine, async generator. The others say
# where the code stands (nested) or how it was written (docstring, futures).
_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(opcode.opmap[name] for name in names if opcode.opmap.get(name, 256) < 256)


_CONST = frozenset(op for op in opcode.hasconst if op < 256)
_LOAD_GLOBAL = _numbers("LOAD_GLOBAL")
_LOAD_NAME = _numbers("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOAD_FREE = _numbers("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_REBIND = _numbers("STORE_GLOBAL", "DELETE_GLOBAL")
_REBIND_FREE = _numbers("STORE_DEREF", "DELETE_DEREF")
_STORE_NAME = _numbers("STORE_NAME")
_IMPORT = _numbers("IMPORT_NAME")
_ATTRIBUTE = _numbers("LOAD_ATTR", "LOAD_METHOD")
_SMALL_INT = _numbers("LOAD_SMALL_INT")
_PUSH_NULL = _numbers("PUSH_NULL")
_EXTENDED = _numbers("EXTENDED_ARG")
_RARE = _LOAD_NAME | _LOAD_FREE | _REBIND | _REBIND_FREE | _STORE_NAME | _IMPORT
_ATTRIBUTE_SHIFT = 0 if sys.version_info < (3, 12) else 1
_CALLED_SIDE = -1 if sys.version_info < (3, 13) else 1  # where the PUSH_NULL of a callee stands

_wanted = sorted(_CONST | _LOAD_GLOBAL | _EXTENDED | _RARE)
_find = re.compile(b"[" + b"".join(re.escape(bytes([op])) for op in _wanted) + b"]").finditer


class Use(NamedTuple):
    """A global that the code loads."""

    name: str
    called: bool
    """called on the spot; else it is handed on, or an attribute of it is taken"""
    attributes: tuple[str, ...]
    """attributes taken from it on the spot; "" is the value itself"""

    def how(self) -> dict[str | None, None]:
        return dict.fromkeys((*self.attributes, None) if self.called else self.attributes)


class Shape(NamedTuple):
    digest: bytes
    uses: tuple[Use, ...] = ()
    rebinds: frozenset[str] = frozenset()
    rebinds_free: frozenset[str] = frozenset()
    calls_free: frozenset[str] = frozenset()
    imports: tuple[str, ...] = ()
    """modules imported by the code itself; relative ones keep their dots"""


class _Scan(NamedTuple):
    """What one pass over the instructions finds. Tuples only: there are many, and the garbage
    collector does not come back to those."""

    masked: bytes
    """the instructions, with the numbers of constants taken out: the order of use stands for them"""
    consts: tuple[int, ...]
    uses: tuple[Use, ...]
    rare: tuple[tuple[int, int, int], ...]
    """(operation, position, argument) of what most code does not have"""


def _scan(raw: bytes, names: tuple[str, ...]) -> _Scan:
    ops = raw[::2]
    masked = bytearray(raw)
    consts: list[int] = []
    loads: dict[str, dict[str | None, None]] = {}
    rare: list[tuple[int, int, int]] = []
    extended = 0
    after = -1
    for found in _find(ops):
        at = found.start()
        op = ops[at]
        arg = raw[2 * at + 1]
        if at == after:
            arg |= extended
        if op in _CONST:
            masked[2 * at + 1] = 0
            consts.append(arg)
        elif op in _LOAD_GLOBAL:
            how = _attribute(
                raw, ops, at + 1, names
            )  # also for `np.zeros(3)`, where np has the callee's mark
            loads.setdefault(names[arg >> 1], {})[None if arg & 1 and not how else how] = None
        elif op in _EXTENDED:
            extended, after = arg << 8, at + 1
        elif op in _STORE_NAME and names[arg] in _PLACE:
            masked[2 * at - 2 : 2 * at] = b"\0\0"  # what a class body notes about its own place
            if ops[at - 1] in _CONST:
                consts.pop()
        else:
            rare.append((op, at, arg))
    return _Scan(bytes(masked), tuple(consts), _uses(loads), tuple(rare))


def _attribute(raw: bytes, ops: bytes, at: int, names: tuple[str, ...]) -> str:
    """The attribute that the instruction takes from what the one before has loaded, or ""."""
    end = len(ops)
    while at < end and ops[at] == 0:  # inline caches
        at += 1
    if at < end and ops[at] in _ATTRIBUTE:
        return names[raw[2 * at + 1] >> _ATTRIBUTE_SHIFT]
    return ""


def _uses(loads: dict[str, dict[str | None, None]]) -> tuple[Use, ...]:
    return tuple([_use(name, *how) for name, how in loads.items()])


@lru_cache(4096)  # programs use few names often; thousands of equal values would be the collector's work
def _use(name: str, *how: str | None) -> Use:
    return Use(name, None in how, tuple(a for a in how if a is not None))


class Shapes:
    """Shapes, each code object looked at once."""

    def __init__(self) -> None:
        # By id, for the hash of a code object goes over all of it. The code is kept beside its
        # shape, so that its id cannot be given to another one meanwhile.
        self._known: dict[int, tuple[CodeType, Shape]] = {}
        self._scans: dict[tuple[bytes, tuple[str, ...]], _Scan] = {}

    def plain_uses(self, code: CodeType) -> tuple[Use, ...] | None:
        """What code loads that has no code inside and does none of the rare things; None if it does.

        Code that differs in its constants only is given the very same tuple.
        """
        scan = self._scan_of(code)
        if scan.rare:
            return None
        consts = code.co_consts
        for index in scan.consts:
            if type(consts[index]) is CodeType:
                return None
        return scan.uses

    def rebinds(self, code: CodeType) -> frozenset[str]:
        return frozenset() if self.plain_uses(code) is not None else self.of(code).rebinds

    def of(self, code: CodeType) -> Shape:
        known = self._known.get(id(code))
        if known is not None:
            return known[1]
        shape = self._make(code)
        self._known[id(code)] = (code, shape)
        return shape

    def _scan_of(self, code: CodeType) -> _Scan:
        key = (code.co_code, code.co_names)
        scan = self._scans.get(key)
        if scan is None:  # generated tasks often differ in their constants only
            scan = self._scans[key] = _scan(*key)
        return scan

    def _make(self, code: CodeType) -> Shape:
        scan = self._scan_of(code)
        consts = code.co_consts
        nested: list[tuple[CodeType, Shape]] = []
        used: list[object] = []
        for index in scan.consts:
            value = consts[index]
            if type(value) is CodeType:
                nested.append((value, self.of(value)))
                value = nested[-1][1].digest
            used.append(value)
        digest = pack((scan.masked, code.co_names, used, *_signature(code), code.co_exceptiontable))
        if nested or scan.rare:
            return _joined(digest, scan, code, nested)
        return Shape(digest, scan.uses)


def _signature(code: CodeType) -> tuple[object, ...]:
    """Parameters, by name: arguments are looked up by it. Other locals may be called anything."""
    flags = code.co_flags & _FLAGS
    count = code.co_argcount + code.co_kwonlyargcount + (flags >> 2 & 1) + (flags >> 3 & 1)
    names = code.co_varnames[:count] if count else ()  # a tuple is made for each who asks
    return names, code.co_argcount, code.co_posonlyargcount, flags


def raw(code: CodeType) -> tuple[object, ...]:
    """All of plain code that does anything, for `pack`: more than a shape has, and made at once."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_code, code.co_consts, code.co_names, code.co_varnames, counts, code.co_exceptiontable


# Plain constants of any type, which is what marshal takes.
def pack(parts: tuple[Any, ...]) -> bytes:
    """A digest of plain constants: equal parts give equal bytes, in every process."""
    try:
        data = marshal.dumps(parts, _MARSHAL)
    except ValueError:  # a slice, which is a constant from 3.14 on
        data = marshal.dumps(_without_slices(parts), _MARSHAL)
    return blake2b(data, digest_size=16).digest()


def _without_slices(value: Any) -> Any:  # constants of any type
    if type(value) in (tuple, list):
        return tuple(_without_slices(item) for item in value)
    if type(value) is slice:
        return ("slice", value.start, value.stop, value.step)
    return value


def _joined(digest: bytes, scan: _Scan, code: CodeType, nested: list[tuple[CodeType, Shape]]) -> Shape:
    """The shape of code that has code inside, or does one of the rare things."""
    names, frees = code.co_names, code.co_freevars
    stored = {names[arg] for op, _, arg in scan.rare if op in _STORE_NAME}  # locals of a class body
    loads = {use.name: use.how() for use in scan.uses}
    rebinds, rebinds_free, calls_free = set[str](), set[str](), set[str]()
    imports: dict[str, None] = {}
    for op, at, arg in scan.rare:
        if op in _LOAD_NAME and names[arg] not in stored:
            loads.setdefault(names[arg], {})[""] = None
        elif op in _REBIND:
            rebinds.add(names[arg])
        elif op in _REBIND_FREE:
            rebinds_free |= _free(code, arg)
        elif frees and op in _LOAD_FREE and code.co_code[2 * (at + _CALLED_SIDE)] in _PUSH_NULL:
            calls_free |= _free(code, arg)
        elif op in _IMPORT:
            imports["." * _level(code, at) + names[arg]] = None
    for inner, shape in nested:
        for use in shape.uses:
            for how in (*use.attributes, None) if use.called else use.attributes:
                loads.setdefault(use.name, {})[how] = None
        rebinds |= shape.rebinds
        passed = set(inner.co_freevars).intersection(frees)  # the others are cells of our own
        rebinds_free |= shape.rebinds_free & passed
        calls_free |= shape.calls_free & passed
        imports |= dict.fromkeys(shape.imports)
    return Shape(
        digest,
        _uses(loads),
        frozenset(rebinds),
        frozenset(rebinds_free),
        frozenset(calls_free),
        tuple(imports),
    )


def _free(code: CodeType, slot: int) -> set[str]:
    """The free variable in a slot of the frame; none if the slot is a cell of the code's own."""
    index = slot - len(set(code.co_varnames).union(code.co_cellvars))
    return {code.co_freevars[index]} if index >= 0 else set()


def _level(code: CodeType, at: int) -> int:
    """How many dots the import at this position has."""
    op, arg = code.co_code[2 * at - 4 : 2 * at - 2]  # the level, then the names, then IMPORT_NAME
    level = arg if op in _SMALL_INT else code.co_consts[arg] if op in _CONST else 0
    return level if type(level) is int else 0

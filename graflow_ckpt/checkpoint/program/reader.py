"""The part of a fingerprint that comes from one value.

A `Reading` has three parts: texts that can be compared here and now (a digest of code, constants), the values
that it leads to (functions and classes of the user's own modules, to be read in their turn), and the names of
what cannot be seen.

Promise: no code of the user runs here. Attributes are looked up where Python has stored them, because
`__getattr__`, properties and metaclasses may do anything. The user's own code is followed, an installed
package is named. Not here: one digest of all (program.py).
"""

from __future__ import annotations

import builtins
import functools
import opcode
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from hashlib import blake2b
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MethodType,
    ModuleType,
    UnionType,
)
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from graflow_ckpt.checkpoint.values.codec import NotPlain, encode
from graflow_ckpt.core.task import Task

OWN: Final = "."  # the user's own modules, whose code is followed
QUIET: Final = ""  # changes with Python or with this package, which the checkpoint names already

_ABSENT = object()
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), range})
_FROZEN = frozenset(
    {
        "datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "decimal.Decimal",
        "fractions.Fraction", "pathlib.PosixPath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath",
        "pathlib._local.PosixPath", "pathlib._local.PurePosixPath", "re.Pattern", "uuid.UUID",
    }
)  # fmt: skip
_PLACE = frozenset({"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__"})
_PLACE |= {"__builtins__", "__cached__", "__path__", "__annotations__"}
_BLIND = frozenset({"eval", "exec", "globals", "__import__"})  # what they reach is known only when they run
_HANDS_ON = "next_task"
_HINTS = (GenericAlias, UnionType)
_QUIET_TYPES = frozenset({"logging", "typing", "dataclasses"})  # nothing of theirs is in a result
_DESCRIPTORS = (staticmethod, classmethod)
_CACHED = functools._lru_cache_wrapper
_MADE = frozenset({"_abc_impl", "_field_defaults", "__annotate__", "__annotate_func__"})  # by Python itself


# --- looking without running ---------------------------------------------------------------


def state_of(value: object) -> dict[str, Any]:
    """Return what an object has in its `__dict__`, without asking the object."""
    for kind in type.__dict__["__mro__"].__get__(type(value)):
        found = type.__dict__["__dict__"].__get__(kind).get("__dict__")
        if type(found) is GetSetDescriptorType:
            state = found.__get__(value)
            return state if type(state) is dict else {}
    return {}


def is_a(value: object, *kinds: type) -> bool:
    """Do what `isinstance` does, without asking the object for its `__class__`."""
    return issubclass(type(value), kinds)


def task_body(value: object) -> object | None:
    """Return the function behind a decorated task; None if it is no such thing."""
    if not is_a(value, Task):
        return None
    task: Any = value
    return functools.partial(task.func, **task.arguments) if task.arguments else task.func


# --- code ----------------------------------------------------------------------------------


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(opcode.opmap[name] for name in names if name in opcode.opmap)


_GLOBAL = _numbers("LOAD_GLOBAL")
_NAME = _numbers("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_IMPORT = _numbers("IMPORT_NAME")
_REBIND = _numbers("STORE_GLOBAL", "DELETE_GLOBAL")
_STORE_NAME = _numbers("STORE_NAME")
_CONST = frozenset(opcode.hasconst)
_EXTENDED = _numbers("EXTENDED_ARG")
_HAS_DOCSTRING, _NESTED, _OPTIMIZED = 0x4000000, 0x10, 0x1


class Operands(NamedTuple):
    """The names in instructions: globals, those bound again, modules, and how often each constant is used."""

    loads: set[str]
    rebinds: set[str]
    imports: set[str]
    consts: Counter[int]


class Shape(NamedTuple):
    """The contents of code, code inside of it included, and the names that it uses."""

    digest: bytes
    loads: tuple[str, ...]  # globals
    rebinds: frozenset[str]  # those that it binds again: state, not something that was written
    names: frozenset[str]  # attributes too
    imports: frozenset[str]


_SHAPES: WeakKeyDictionary[CodeType, Shape] = WeakKeyDictionary()
"""Of code that this process has read: one that begins many runs reads it once. Equal code has one shape."""


def shape_of(code: CodeType) -> Shape:
    """Return the shape. Lines, docstrings and names of locals do not count."""
    if (found := _SHAPES.get(code)) is not None:
        return found
    own = _operands(code)
    inner = [shape_of(const) for const in code.co_consts if type(const) is CodeType]
    nested = iter(inner)
    consts = [next(nested).digest.hex() if type(c) is CodeType else constant(c) for c in code.co_consts]
    if not own.consts[0] and _documented(code):
        consts[0] = ""
    for index in (i for i, value in enumerate(code.co_consts) if value == code.co_firstlineno):
        if own.consts[index] == 1 and "__firstlineno__" in code.co_names:
            consts[index] = ""  # what a class notes about its own place
    count = code.co_argcount + code.co_kwonlyargcount + (code.co_flags >> 2 & 1) + (code.co_flags >> 3 & 1)
    flags = code.co_flags & ~(_HAS_DOCSTRING | _NESTED)
    said = (
        code.co_code, consts, code.co_names, code.co_varnames[:count], code.co_argcount,
        code.co_posonlyargcount, flags, code.co_freevars, code.co_exceptiontable,
    )  # fmt: skip
    shape = Shape(
        digest_of(map(repr, said)),
        tuple(sorted(own.loads.union(*(each.loads for each in inner)))),
        frozenset(own.rebinds).union(*(each.rebinds for each in inner)),
        frozenset(code.co_names).union(*(each.names for each in inner)),
        frozenset(own.imports).union(*(each.imports for each in inner)),
    )
    _SHAPES[code] = shape
    return shape


def _operands(code: CodeType) -> Operands:
    found, stored, high = Operands(set(), set(), set(), Counter()), set[str](), 0
    raw, names = code.co_code, code.co_names
    for at in range(0, len(raw), 2):
        op, argument, high = raw[at], high | raw[at + 1], 0
        if op in _CONST:
            found.consts[argument] += 1
        elif op in _GLOBAL:
            found.loads.add(names[argument >> 1])
        elif op in _NAME:
            found.loads.add(names[argument])
        elif op in _EXTENDED:
            high = argument << 8
        elif op in _STORE_NAME:
            stored.add(names[argument])
        elif op in _REBIND:
            found.rebinds.add(names[argument])
        elif op in _IMPORT:
            found.imports.add("." * _level(code, at) + names[argument])
    found.loads.difference_update(stored)  # locals of a class body
    return found


def _level(code: CodeType, at: int) -> int:
    """Return how many dots an import has: the level is loaded two instructions before."""
    op, argument = code.co_code[at - 4 : at - 2]
    level = code.co_consts[argument] if op in _CONST else argument
    return level if type(level) is int else 0


def _documented(code: CodeType) -> bool:
    if not code.co_consts or type(code.co_consts[0]) is not str:
        return False
    if sys.version_info >= (3, 14):  # which says so
        return bool(code.co_flags & _HAS_DOCSTRING)
    return bool(code.co_flags & _OPTIMIZED) and not code.co_name.startswith("<")


def constant(value: Any) -> str:
    """Return an immutable value as text, the same in every process."""
    kind = type(value)
    if kind is tuple:
        return f"({','.join(map(constant, value))})"
    if kind is frozenset:
        return f"{{{','.join(sorted(map(constant, value)))}}}"
    return f"{kind.__name__}:{value!r}"


def is_constant(value: Any) -> bool:
    """Return whether it cannot change, and is nothing but itself. Exact types: a subclass has code."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(map(is_constant, value))
    return kind in _ATOMS or f"{_module(kind)}.{_qualname(kind)}" in _FROZEN


def digest_of(texts: Iterable[str]) -> bytes:
    """Return sixteen bytes for a list of texts."""
    found = blake2b(digest_size=16)
    for text in texts:
        data = text.encode(errors="surrogatepass")
        found.update(b"%d " % len(data))
        found.update(data)
    return found.digest()


# --- values --------------------------------------------------------------------------------


class Reading:
    """The contribution of one value to a fingerprint."""

    __slots__ = ("leads", "not_seen", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.leads: list[object] = []
        self.not_seen: list[str] = []

    def blind(self, name: str) -> None:
        self.parts.append("not seen")
        self.not_seen.append(name)


class Reader:
    """Reads values. `tasks` are the tasks of the graph, `packages` are the user's own
    beside those that decorate them."""

    def __init__(self, tasks: Collection[object], packages: Collection[str] = ()) -> None:
        self.bodies = [self.body(task) for task in tasks]
        pairs = zip(tasks, self.bodies, strict=True)
        wrapped = (task.func for task, body in pairs if isinstance(task, Task) and task.func is not body)
        run = [*self.bodies, *wrapped]
        self._kept = [*tasks, *run]
        self._tasks = frozenset(map(id, self._kept))
        self._origin = origins([*packages, *declaring(run, self._inner)])

    def body(self, task: object) -> object:
        """Return what a task runs: decorations that do not change it are taken off."""
        while type(task) is not FunctionType:
            made: Any = task
            if issubclass(type(made), Task) and not made.arguments:
                task = made.func
                continue
            inner = self._inner(task)
            if inner is None or inner is task:
                break
            task = inner
        return task

    def _inner(self, value: object) -> object | None:
        """Return what a task or a cache runs. Any other wrapper has code and state of its own."""
        return state_of(value).get("__wrapped__") if type(value) is _CACHED else task_body(value)

    def read(self, value: object) -> Reading:
        """Return what a value says by itself; the caller follows it."""
        reading = Reading()
        if type(value) is FunctionType and self._origin(_home(value)) == OWN:
            self._function(reading, value)
        elif is_a(value, type) and self._origin(_module(value)) == OWN:
            self._class(reading, value)
        else:
            self._refer(reading, "", value)
        return reading

    def names_in(self, function: FunctionType) -> Reading | None:
        """Return what the globals that a function names say; None if it says more than its code and these."""
        reading = Reading()
        shape = shape_of(function.__code__)
        if shape.imports or self._origin(_home(function)) != OWN:
            return None
        for name in shape.loads:
            self._global(reading, name, function.__globals__, shape)
        return reading

    # --- functions and classes of the user's own modules ---

    def _function(self, reading: Reading, function: FunctionType) -> None:
        code = function.__code__
        shape = shape_of(code)
        reading.parts.append(shape.digest.hex())
        for name in shape.loads:
            self._global(reading, name, function.__globals__, shape)
        for name in sorted(shape.imports):
            self._foreign(reading, name, name)
        defaults = function.__defaults__ or ()
        first = code.co_argcount - len(defaults)
        given = dict(zip(code.co_varnames[first : code.co_argcount], defaults, strict=True))
        for name, value in (given | (function.__kwdefaults__ or {})).items():
            reading.parts.append(name)
            self._content(reading, f"{name} (default)", value)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing in it yet
                reading.blind(name)
            else:
                self._refer(reading, name, value, shape)
        self._attributes(reading, function)

    def _attributes(self, reading: Reading, function: FunctionType) -> None:
        for name, held in function.__dict__.items():
            if name == "__wrapped__":
                self._refer(reading, function.__name__, held)
            elif not name.startswith("__"):  # the code may rebind it
                reading.blind(f"{function.__name__}.{name}")

    def _content(self, reading: Reading, label: str, value: object) -> None:
        """Read a default or a bound argument: the function's own, so lists and dicts count as they are."""
        if is_constant(value):
            reading.parts.append(constant(value))
            return
        try:
            reading.parts.append(encode(value).hex())
        except NotPlain:
            self._refer(reading, label, value)

    def _global(self, reading: Reading, name: str, module: dict[str, Any], shape: Shape) -> None:
        """Read what a name in the code is bound to now."""
        value = module.get(name, _ABSENT)
        if name in shape.rebinds:
            reading.blind(name)
        elif value is _ABSENT:
            if name in _BLIND or not (name in vars(builtins) or name in _PLACE):
                reading.blind(name)
        elif name in _PLACE:
            return
        elif type(value) is ModuleType and self._origin(value.__name__) == OWN:
            for attribute in sorted(shape.names & value.__dict__.keys() - _PLACE):
                self._refer(reading, f"{name}.{attribute}", value.__dict__[attribute], shape)
        else:
            reading.parts.append(name)
            self._refer(reading, name, value, shape)

    def _class(self, reading: Reading, cls: Any) -> None:
        if self._origin(_module(type(cls))) == OWN:  # a metaclass
            self._code(reading, type(cls))
        for base in type.__dict__["__mro__"].__get__(cls)[1:]:
            self._refer(reading, base.__name__, base)
        members = dict(type.__dict__["__dict__"].__get__(cls))
        if is_a(cls, type(Enum)):
            for name, member in members["_member_map_"].items():
                reading.parts.append(name)
                self._refer(reading, f"{cls.__name__}.{name}", state_of(member).get("_value_"))
            members = {name: value for name, value in members.items() if name not in members["_member_map_"]}
        for name in sorted(members):
            value = members[name]
            parts = _parts(value)
            made = name[0] == name[-1] == "_" or self._is_slot(value)
            if name in _MADE or (made and not any(type(part) is FunctionType for part in parts)):
                continue
            reading.parts.append(f"{name} {type(value).__name__}")
            for part in parts:
                self._refer(reading, f"{cls.__name__}.{name}", part)

    def _is_slot(self, value: object) -> bool:
        """Return whether it is a descriptor that Python made: a slot, a field of a named tuple."""
        kind = type(value)
        return "__set__" in type.__dict__["__dict__"].__get__(kind) and self._origin(_module(kind)) == QUIET

    # --- everything else ---

    def _refer(self, reading: Reading, label: str, value: Any, shape: Shape | None = None) -> None:
        """Note a value of any type that a name, a cell, a default or a member is bound to."""
        kind = type(value)
        if is_constant(value):
            reading.parts.append(constant(value))
        elif shape is not None and _HANDS_ON in shape.names and self._is_task(value):
            reading.parts.append("task")  # passed on: it has a row of its own
        elif kind is FunctionType or is_a(value, type):
            self._code(reading, value)
        elif kind is ModuleType:
            self._foreign(reading, label, value.__name__)
        elif kind is MethodType or (
            kind is BuiltinFunctionType and type(value.__self__) not in (type(None), ModuleType)
        ):
            reading.parts.append(value.__name__)
            if kind is MethodType:
                self._refer(reading, label, value.__func__)
            self._refer(reading, f"{label}.self" if label else "self", value.__self__)
        elif is_a(value, functools.partial):
            self._bound(reading, label, value)
        elif (inner := self._inner(value)) is not None:
            self._refer(reading, label, inner)
        else:
            self._object(reading, label, value)

    def _is_task(self, value: Any) -> bool:
        """Return whether it is a task of the graph, or one that a task was made from by binding arguments."""
        return id(value) in self._tasks or (is_a(value, Task) and id(value.func) in self._tasks)

    def _bound(self, reading: Reading, label: str, value: functools.partial[Any]) -> None:
        reading.parts.append("partial")
        self._refer(reading, label, value.func)
        for name, argument in [*enumerate(value.args), *sorted(value.keywords.items())]:
            reading.parts.append(str(name))
            self._content(reading, f"{name} (bound)", argument)

    def _code(self, reading: Reading, value: Any) -> None:  # a function or a class
        home = _home(value) if type(value) is FunctionType else _module(value)
        if self._origin(home) == OWN:
            reading.parts.append("code")
            reading.leads.append(value)
            return
        qualname = value.__qualname__ if type(value) is FunctionType else _qualname(value)
        reading.parts.append(qualname)
        self._foreign(reading, qualname, home)
        if type(value) is FunctionType:  # decorated by code that is not the user's
            self._attributes(reading, value)

    def _foreign(self, reading: Reading, label: str, home: str) -> None:
        reading.parts.append(home)
        origin = self._origin(home)
        if origin != QUIET:
            reading.not_seen.append(label if origin == OWN else origin)

    def _object(self, reading: Reading, label: str, value: Any) -> None:
        kind = type(value)
        home = _module(kind)
        if is_a(value, Enum):
            reading.parts.append(str(state_of(value).get("_name_")))
            self._code(reading, kind)
        elif home == "builtins" and "__call__" in type.__dict__["__dict__"].__get__(kind):  # written in C
            reading.parts.append(value.__qualname__)
            owner = getattr(value, "__objclass__", value)
            self._foreign(reading, label, str(getattr(owner, "__module__", None) or home))
        elif kind is not object and home not in _QUIET_TYPES and kind not in _HINTS:
            if home.partition(".")[0] == "graflow_ckpt":
                return
            reading.blind(label or "self")
            own = self._origin(home) == OWN
            if own:
                self._code(reading, kind)
            for name, held in state_of(value).items():
                if name == "__wrapped__" or (own and type(held) is FunctionType):
                    reading.leads.append(held)  # read once, whatever it refers to


def _home(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__", ""))


def _module(kind: Any) -> str:
    """Return the module of a class, as `type` knows it: a metaclass may say anything."""
    found = type.__dict__["__module__"].__get__(kind)
    return found if type(found) is str else ""


def _qualname(kind: type) -> str:
    return str(type.__dict__["__qualname__"].__get__(kind))


def _parts(member: object) -> tuple[object, ...]:
    """Return what a member of a class is made of."""
    if type(member) is property:
        return (member.fget, member.fset, member.fdel)
    return (member.__func__,) if type(member) in _DESCRIPTORS else (member,)  # type: ignore[attr-defined]


# --- the owners of modules --------------------------------------------------------------


def origins(packages: Iterable[str]) -> Callable[[str], str]:
    """Return what says who owns a module: OWN, QUIET, or the installed package that it belongs to.

    `packages` are the user's. A package that decorates the tasks at hand is the user's own wherever it is:
    one worker has it from a checkout, another has it installed, and a third has another version of it.
    """
    owned = frozenset(packages)

    @functools.cache
    def of(name: str) -> str:
        place = _place(name)
        return OWN if place != QUIET and name.partition(".")[0] in owned else place

    return of


def declaring(bodies: Iterable[object], inner: Callable[[object], object | None]) -> Iterator[str]:
    """Yield installed packages in which a body is decorated under its own name; look at no others."""
    places: dict[str, str] = {}
    for body in bodies:
        if type(body) is not FunctionType:
            continue
        module = body.__module__ or ""
        place = places.get(module)
        if place is None:
            place = places[module] = _place(module)
        if place not in (OWN, QUIET) and _is_decorated(body, inner):
            places[module] = OWN
            yield place


def _is_decorated(body: FunctionType, inner: Callable[[object], object | None]) -> bool:
    if "<" in body.__qualname__:
        return False
    found: object = sys.modules.get(body.__module__)
    for part in body.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not body and inner(found) is body


def _place(name: str) -> str:
    top = name.partition(".")[0]
    if not top:  # imported relatively
        return OWN
    if top in sys.stdlib_module_names or top == "graflow_ckpt":
        return QUIET
    module = sys.modules.get(name, sys.modules.get(top))
    if module is None or top == "__main__":  # made by exec, or not loaded: nothing else is known
        return OWN
    file = getattr(module, "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    if file is None or "site-packages" in file or "dist-packages" in file:
        return top
    return OWN

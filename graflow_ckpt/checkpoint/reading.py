"""What one value contributes to a fingerprint.

A `Reading` has three parts: a digest of what can be compared here and now (code, constants), the
values that it leads to (helpers and classes of the user's own modules, to be read in their turn),
and the names of what cannot be seen. The rules are the ones that fingerprint.py promises.

The reader never follows anything itself: that a helper calls its caller is no trouble here.
Not here: instructions (bytecode.py), constants (constants.py), one digest of all (fingerprint.py).
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Collection
from enum import Enum
from types import BuiltinFunctionType, FunctionType, GenericAlias, MethodType, ModuleType, UnionType
from typing import Any

from graflow_ckpt.checkpoint.bytecode import Shape, Shapes, pack
from graflow_ckpt.checkpoint.constants import amounts_to, contents_of, is_constant
from graflow_ckpt.checkpoint.origins import OWN, QUIET, Origins, declaring

Unwrap = Callable[[object], object | None]

_ABSENT = object()
_PLACE = frozenset({"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__"})
_PLACE |= {"__builtins__", "__cached__", "__path__"}
_BLIND = frozenset({"eval", "exec", "globals", "__import__"})  # what they reach is known only when they run
_DIRECT = frozenset({"func", "__call__", "__wrapped__"})
_HINTS = (GenericAlias, UnionType)
_QUIET_TYPES = frozenset({"logging", "typing", "dataclasses"})  # nothing of theirs is in a result
_DESCRIPTORS = (staticmethod, classmethod)
_NO_TASKS = (type, ModuleType, functools.partial, MethodType, *_DESCRIPTORS)
_MADE = frozenset({"_abc_impl", "_field_defaults", "__annotate__", "__annotate_func__"})  # by Python itself


def task_body(value: object) -> object | None:
    """The function behind a decorated task: an object that has `func`, and maybe `arguments`
    bound to it. None if it is no such thing. Looks at what is declared and calls nothing."""
    kind = type(value)
    if getattr(kind, "func", None) is None and "func" not in _state(value):
        return None
    body: object = getattr(value, "func", None)
    if not callable(body):
        return None
    arguments = getattr(value, "arguments", None) if getattr(kind, "arguments", None) is not None else None
    return functools.partial(body, **arguments) if isinstance(arguments, dict) and arguments else body


class Reading:
    """What has been read off one value."""

    __slots__ = ("digest", "leads", "not_seen", "parts", "plain")

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain  # of code that has no code inside
        self.parts: list[object] = []
        self.leads: list[object] = []
        self.not_seen: list[str] = []
        self.digest = b""

    def blind(self, name: str) -> None:
        self.parts.append("not seen")
        self.not_seen.append(name)


class Reader:
    """Reads values, with a memory for code and modules. `tasks` are the tasks of the graph, `packages`
    are the user's own beside those that decorate them."""

    def __init__(self, unwrap: Unwrap, tasks: Collection[object], packages: Collection[str] = ()) -> None:
        self._unwrap = unwrap
        self._shapes = Shapes()
        # By id; what is kept in the value keeps the id from being given to something else.
        self._named: dict[tuple[int, int], tuple[object, dict[str, Any], Reading]] = {}
        self._rebound: dict[int, tuple[dict[str, Any], frozenset[str]]] = {}
        self._kept = [body for task in tasks for body in (task, self.body(task))]
        self._tasks = frozenset(map(id, self._kept))
        self._origin = Origins([*packages, *declaring(self._kept, self._inner)]).of

    def body(self, task: object) -> object:
        """What a task runs: decorations that say where the function is are taken off."""
        while type(task) is not FunctionType:
            inner = self._inner(task)
            if inner is None or inner is task:
                break
            task = inner
        return task

    def _inner(self, value: object) -> object | None:
        if isinstance(value, _NO_TASKS):
            return None
        inner = self._unwrap(value)
        return _state(value).get("__wrapped__") if inner is None else inner

    def read(self, value: object) -> Reading:
        reading = Reading()
        if type(value) is FunctionType and self._origin(_home(value)) == OWN:
            self._function(reading, value)
        elif isinstance(value, type) and self._origin(value.__module__) == OWN:
            self._class(reading, value)
        else:
            self._refer(reading, "", value)
        reading.digest = pack(tuple(reading.parts))
        return reading

    def digest_of(self, function: FunctionType) -> bytes:
        return self._shapes.of(function.__code__).digest

    def names_of(self, function: FunctionType) -> Reading | None:
        """The globals that the user's own code names, read once for all that differs in constants only."""
        code, module = function.__code__, function.__globals__
        uses = self._shapes.plain_uses(code)
        names: object = code if uses is None else uses
        known = self._named.get((id(names), id(module)))
        if known is None:
            if self._origin(_home(function)) != OWN:
                return None
            known = self._named[id(names), id(module)] = (names, module, Reading(plain=uses is not None))
            self._globals(known[2], self._shapes.of(code), module)
        return known[2]

    # --- functions and classes of the user's own modules ---

    def _function(self, reading: Reading, function: FunctionType) -> None:
        code = function.__code__
        shape = self._shapes.of(code)
        reading.parts.append(shape.digest)
        defaults, keywords = function.__defaults__, function.__kwdefaults__
        named = self.names_of(function) if shape.uses or shape.imports else None
        if named is not None:
            reading.parts += named.parts
            reading.leads += named.leads
            reading.not_seen += named.not_seen
        if defaults:
            first = code.co_argcount - len(defaults)
            for name, value in zip(code.co_varnames[first : code.co_argcount], defaults, strict=True):
                self._default(reading, name, value)
        if keywords:
            for name in sorted(keywords):
                reading.parts.append(name)
                self._default(reading, name, keywords[name])
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in shape.rebinds_free:
                reading.blind(name)
                continue
            try:
                value = cell.cell_contents
            except ValueError:  # nothing in it yet
                reading.blind(name)
                continue
            self._refer(reading, name, value, called=name in shape.calls_free)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._refer(reading, "__wrapped__", wrapped)

    def _default(self, reading: Reading, name: str, value: object) -> None:
        contents = contents_of(value)
        if contents is None:
            self._refer(reading, f"{name} (default)", value)
        else:
            reading.parts.append(contents)

    def _globals(self, reading: Reading, shape: Shape, module: dict[str, Any]) -> None:
        """What the names in the code are bound to now."""
        for use in shape.uses:
            if use.name in shape.rebinds:
                reading.blind(use.name)
            else:
                called = use.called or not _DIRECT.isdisjoint(use.attributes)
                self._global(reading, use.name, module, use.name, called, use.attributes)
        for name in shape.imports:
            if name.startswith("."):
                reading.not_seen.append(name)
            elif self._origin(name) != QUIET:
                reading.not_seen.append(name.partition(".")[0])

    def _global(
        self,
        reading: Reading,
        label: str,
        module: dict[str, Any],
        name: str,
        called: bool,
        attributes: tuple[str, ...],
    ) -> None:
        value = module.get(name, _ABSENT)
        if value is _ABSENT:
            if name in _BLIND or not (name in vars(builtins) or name in _PLACE):
                reading.blind(label)
        elif name in _PLACE:
            return
        elif type(value) is ModuleType and self._origin(value.__name__) == OWN and "" not in attributes:
            for attribute in attributes:
                self._global(reading, f"{label}.{attribute}", vars(value), attribute, False, ("",))
        elif self._may_be_state(value) and name in self._rebinds(module):
            reading.blind(label)
        else:
            self._refer(reading, label, value, called=called)

    def _may_be_state(self, value: object) -> bool:
        return not (isinstance(value, (FunctionType, ModuleType, type)) or id(value) in self._tasks)

    def _rebinds(self, module: dict[str, Any]) -> frozenset[str]:
        """The globals that functions of the module rebind: state, not something that was written."""
        known = self._rebound.get(id(module))
        if known is None:
            found: set[str] = set()
            for value in list(module.values()):
                for member in vars(value).values() if isinstance(value, type) else (value,):
                    for part in _parts(member):
                        body = part if type(part) is FunctionType else self.body(part)
                        if type(body) is FunctionType and body.__globals__ is module:
                            found |= self._shapes.rebinds(body.__code__)
            known = self._rebound[id(module)] = (module, frozenset(found))
        return known[1]

    def _class(self, reading: Reading, cls: type) -> None:
        for base in cls.__mro__[1:]:
            self._refer(reading, base.__name__, base)
        members = dict(vars(cls))
        if issubclass(cls, Enum):
            for name, member in cls.__members__.items():
                reading.parts.append(name)
                self._refer(reading, f"{cls.__name__}.{name}", member._value_)
            members = {name: value for name, value in members.items() if name not in cls.__members__}
        for name in sorted(members):
            value = members[name]
            parts = _parts(value)
            made = name[0] == name[-1] == "_" or self._is_slot(value)
            if name in _MADE or (made and not any(type(part) is FunctionType for part in parts)):
                continue
            reading.parts.append((name, type(value).__name__))
            for part in parts:
                self._refer(reading, f"{cls.__name__}.{name}", part)

    def _is_slot(self, value: object) -> bool:
        """A descriptor that Python made: a slot, a field of a named tuple."""
        kind = type(value)
        return "__set__" in vars(kind) and self._origin(kind.__module__) == QUIET

    # --- everything else ---

    def _refer(self, reading: Reading, label: str, value: Any, *, called: bool = True) -> None:
        """Notes a value of any type that a name, a cell, a default or a member is bound to."""
        kind = type(value)
        if is_constant(value):
            reading.parts.append((value,))
        elif not called and id(value) in self._tasks:
            reading.parts.append("task")  # handed on: it has a row of its own
        elif kind is FunctionType or isinstance(value, type):
            self._code(reading, value)
        elif kind is ModuleType:
            self._foreign(reading, label, value.__name__)
        elif kind is MethodType or (kind is BuiltinFunctionType and _is_bound(value)):
            reading.parts.append(value.__name__)
            if kind is MethodType:
                self._refer(reading, label, value.__func__)
            self._refer(reading, f"{label}.self" if label else "self", value.__self__)
        elif isinstance(value, functools.partial):
            reading.parts.append("partial")
            self._refer(reading, label, value.func, called=called)
            for index, argument in enumerate(value.args):
                self._default(reading, str(index), argument)
            for name in sorted(value.keywords):
                reading.parts.append(name)
                self._default(reading, name, value.keywords[name])
        elif (inner := self._inner(value)) is not None:
            self._refer(reading, label, inner, called=called)
        else:
            self._object(reading, label, value)

    def _code(self, reading: Reading, value: Any) -> None:  # a function or a class
        home = _home(value) if type(value) is FunctionType else value.__module__
        if self._origin(home) == OWN:
            reading.parts.append("code")
            reading.leads.append(value)
            return
        reading.parts.append(value.__qualname__)
        self._foreign(reading, value.__qualname__, home)
        wrapped = vars(value).get("__wrapped__")
        if wrapped is not None and not isinstance(value, type):  # decorated by somebody else's code
            self._refer(reading, value.__name__, wrapped)

    def _foreign(self, reading: Reading, label: str, home: str) -> None:
        reading.parts.append(home)
        origin = self._origin(home)
        if origin != QUIET:
            reading.not_seen.append(label if origin == OWN else origin)

    def _object(self, reading: Reading, label: str, value: Any) -> None:
        kind = type(value)
        home = str(kind.__module__)
        if (constant := amounts_to(value)) is not None:
            reading.parts.append(constant)
        elif isinstance(value, Enum):
            reading.parts.append(str(value._name_))
            self._code(reading, kind)
        elif home == "builtins" and callable(value):  # written in C
            reading.parts.append(value.__qualname__)
            owner = getattr(value, "__objclass__", value)
            self._foreign(reading, label, str(getattr(owner, "__module__", home)))
        elif kind is not object and home not in _QUIET_TYPES and not isinstance(value, _HINTS):
            if home.partition(".")[0] == "graflow_ckpt":
                return
            reading.blind(label or "self")
            if self._origin(home) == OWN:
                self._code(reading, kind)


def _home(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__", ""))


def _state(value: object) -> dict[str, Any]:
    state = getattr(value, "__dict__", None)
    return state if type(state) is dict else {}


def _parts(member: object) -> tuple[object, ...]:
    """What a member of a class is made of."""
    if isinstance(member, property):
        return (member.fget, member.fset, member.fdel)
    return (member.__func__,) if isinstance(member, _DESCRIPTORS) else (member,)


def _is_bound(builtin: Any) -> bool:  # to an object, as `items.append` is
    return not (builtin.__self__ is None or type(builtin.__self__) is ModuleType)

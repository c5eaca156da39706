"""Fingerprints: is this still the task that made the result?

A fingerprint covers the code of a task and what that code names: defaults, constants in its
module or closure, helpers and classes in the user's own modules, followed as far as they go. A
package that decorates tasks is the user's own wherever it stands, in a checkout or installed.
What it cannot see it names in `not_seen`: objects, mutable containers, what the program rebinds
while it runs, installed packages by their name. The standard library, this package, loggers
and type hints are not listed.

Promise: the same source gives the same digest in another process, on other lines, under another
module name, with other comments, docstrings and annotations of locals. Of two tasks of one graph, one
that *calls* the other depends on its code; one that only hands it on (`next_task(ship)`) does
not: what changes there is seen in that task's own row, and a mended task asks nobody to run
again. Not here: what to do about a change (plan.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from types import FunctionType
from typing import Any, Literal, NamedTuple

from graflow_ckpt.checkpoint.bytecode import pack, raw
from graflow_ckpt.checkpoint.reading import Reader, Reading, Unwrap, task_body

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_SCHEME = 1  # raise it when the digest of unchanged code changes: saved ones become "unknown"


_WRITTEN = f"{_PYTHON}/{_SCHEME}"


class Fingerprint(NamedTuple):
    python: str
    """The minor that it was taken on; only within one can digests be compared."""
    digest: str
    not_seen: tuple[str, ...] = ()

    def to_record(self) -> list[str]:
        return [f"{self.python}/{_SCHEME}", self.digest, *self.not_seen]

    @classmethod
    def from_record(cls, record: Iterable[str]) -> Fingerprint:
        python, digest, *not_seen = record
        if python != _WRITTEN:
            minor, _, scheme = python.partition("/")
            # Of another scheme: kept whole, so that it equals no Python and compares as unknown.
            return cls(minor if scheme == str(_SCHEME) else python, digest, tuple(not_seen))
        return cls(_PYTHON, digest, tuple(not_seen))


def fingerprint(
    func: Callable[..., Any], *, unwrap: Unwrap = task_body, packages: Collection[str] = ()
) -> Fingerprint:
    """The fingerprint of one task, as if it were alone."""
    return _Printer(unwrap, (), packages).take(func)


def fingerprints(
    tasks: Mapping[str, Callable[..., Any]], *, unwrap: Unwrap = task_body
) -> dict[str, Fingerprint]:
    """The fingerprints of the tasks of one graph. `unwrap` takes a decoration off: it gives the
    function behind the object, or None."""
    printer = _Printer(unwrap, tuple(tasks.values()))
    return {name: printer.take(task) for name, task in tasks.items()}


def summary(tasks: Mapping[str, Callable[..., Any]], *, unwrap: Unwrap = task_body) -> str:
    """One digest for all tasks of a graph, for a fraction of what their fingerprints cost.

    If it is the same, so are all fingerprints. If not, they may still be: docstrings and names of
    locals are in it too.
    """
    return _Printer(unwrap, tuple(tasks.values())).summary(tasks)


def compare(saved: Fingerprint | None, current: Fingerprint | None) -> Literal["same", "changed", "unknown"]:
    if saved is None or current is None or saved.python != current.python:
        return "unknown"
    return "same" if saved.digest == current.digest else "changed"


class _Printer:
    """Makes readings into fingerprints; what tasks share is read once."""

    def __init__(self, unwrap: Unwrap, tasks: tuple[object, ...], packages: Collection[str] = ()) -> None:
        self._reader = Reader(unwrap, tasks, packages)
        self._shared: dict[tuple[int, int], Fingerprint] = {}
        # By id; the value is kept beside what is known of it, so that its id stays its own.
        self._readings: dict[int, tuple[object, Reading]] = {}
        self._named: dict[int, tuple[object, Fingerprint]] = {}
        self._reached: dict[int, tuple[bytes, frozenset[str]]] = {}

    def summary(self, tasks: Mapping[str, object]) -> str:
        codes: list[object] = []
        numbers: dict[int, int] = {}
        prints: list[object] = []
        for task in tasks.values():
            body = task if type(task) is FunctionType else self._reader.body(task)
            if type(body) is FunctionType and _is_bare(body):
                named = self._reader.names_of(body)
                if named is not None and named.plain:
                    number = numbers.setdefault(id(named), len(prints))
                    if number == len(prints):
                        prints.append(self._print_of_names(named))
                    codes.append((raw(body.__code__), number))
                    continue
            codes.append(repr(self.take(body)))
        # as text: marshal tells strings that are interned from those that are not
        return pack((repr([_PYTHON, _SCHEME, list(tasks), prints]), codes)).hex()

    def take(self, task: object) -> Fingerprint:
        body = task if type(task) is FunctionType else self._reader.body(task)
        if not (type(body) is FunctionType and _is_bare(body)):
            return self._print(self._reader.read(body))
        key = (id(body.__code__), id(body.__globals__))
        known = self._shared.get(key)
        if known is None:
            known = self._shared[key] = self._bare(body)
        return known

    def _bare(self, function: FunctionType) -> Fingerprint:
        """Code and the globals that it names, and nothing else: generated tasks often name the same."""
        named = self._reader.names_of(function)
        if named is None:
            return self._print(self._reader.read(function))
        names = self._print_of_names(named)
        both = self._reader.digest_of(function) + names.digest.encode()
        return Fingerprint(_PYTHON, blake2b(both, digest_size=16).hexdigest(), names.not_seen)

    def _print_of_names(self, named: Reading) -> Fingerprint:
        known = self._named.get(id(named))
        if known is None:
            named.digest = pack(tuple(named.parts))
            known = self._named[id(named)] = (named, self._print(named))
        return known[1]

    def _print(self, reading: Reading) -> Fingerprint:
        if not reading.leads:
            not_seen = tuple(sorted(set(reading.not_seen))) if reading.not_seen else ()
            return Fingerprint(_PYTHON, reading.digest.hex(), not_seen)
        digests = [reading.digest]
        names = set(reading.not_seen)
        for lead in reading.leads:
            digest, reached = self._reach(lead)
            digests.append(digest)
            names |= reached
        return Fingerprint(_PYTHON, pack(tuple(digests)).hex(), tuple(sorted(names)))

    def _reach(self, helper: object) -> tuple[bytes, frozenset[str]]:
        """All that can be reached from a helper, in the order in which it is named. One that is
        met again is noted by its number, so that helpers may call each other in any way."""
        known = self._reached.get(id(helper))
        if known is not None:
            return known
        order = [helper]
        numbers = {id(helper): 0}
        material: list[object] = []
        not_seen: set[str] = set()
        for value in order:  # which grows
            reading = self._reading(value)
            not_seen.update(reading.not_seen)
            material.append(reading.digest)
            for lead in reading.leads:
                if id(lead) not in numbers:
                    numbers[id(lead)] = len(order)
                    order.append(lead)
                material.append(numbers[id(lead)])
        known = self._reached[id(helper)] = (pack(tuple(material)), frozenset(not_seen))
        return known

    def _reading(self, value: object) -> Reading:
        known = self._readings.get(id(value))
        if known is None:
            known = self._readings[id(value)] = (value, self._reader.read(value))
        return known[1]


def _is_bare(function: FunctionType) -> bool:
    """Nothing of its own beside the code: all functions of this code are the same."""
    return (
        function.__closure__ is None
        and function.__defaults__ is None
        and function.__kwdefaults__ is None
        and getattr(function, "__wrapped__", None) is None
    )

"""Fingerprints: is this still the task that made the result?

A fingerprint covers the code of a task (instructions, constants, names and flags), its defaults and bound
arguments, constants in its module or closure, and the functions and classes of the user's own modules that it
names, followed as far as they go. A package that decorates tasks is the user's own wherever it is, in a
checkout or installed. What it cannot see it names in `not_seen`: objects, mutable containers, installed
packages by their name. The standard library, this package, loggers and type hints are not listed.

Promise: the same source gives the same digest in another process, on other lines, under another module name,
with other comments and docstrings. At worst an unchanged task is taken for a changed one, never the other way
round. Of two tasks of one graph, one that names the other depends on its code, unless it calls `next_task`:
what it passes on is seen in that task's own row. Not here: what to do about a change (plan.py).
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from types import CodeType, FunctionType, NoneType
from typing import Any, Literal, NamedTuple

from graflow_ckpt.checkpoint.program.reader import Reader, Reading, digest_of

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_SCHEME = 2  # raise it when the digest of unchanged code changes: saved ones become "unknown"
_WRITTEN = f"{_PYTHON}/{_SCHEME}"


class Fingerprint(NamedTuple):
    """A digest of a task, and what is not in it."""

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


_SIMPLE = frozenset({int, float, str, bytes, bool, NoneType})
"""Types of constants whose text is the same in every process, whatever they are in."""


# Any, here and below: a body is whatever can be called, or a task with bound arguments.
def fingerprint(func: Callable[..., Any], *, packages: Collection[str] = ()) -> Fingerprint:
    """Return the fingerprint of one task, as if it were alone."""
    return _Printer((), packages).take(func)


def fingerprints(tasks: Mapping[str, Any]) -> dict[str, Fingerprint]:
    """Return the fingerprints of the tasks of one graph."""
    printer = _Printer(tuple(tasks.values()))
    return {name: printer.take(task) for name, task in tasks.items()}


def summary(tasks: Mapping[str, Any]) -> str:
    """Return one digest for all tasks of a graph."""
    found = fingerprints(tasks)
    return digest_of([_WRITTEN, *(repr((name, *found[name])) for name in found)]).hex()


def outline(tasks: Mapping[str, Any]) -> str:
    """Return one digest for all tasks of a graph, for a tenth of what their fingerprints cost.

    If it is the same, so are all fingerprints. If not, they may still be: docstrings and names of locals are
    in it, too.
    """
    return _Printer(tuple(tasks.values())).outline(tasks)


def compare(saved: Fingerprint | None, current: Fingerprint | None) -> Literal["same", "changed", "unknown"]:
    """Return whether two fingerprints say the same; unknown where they cannot be compared."""
    if saved is None or current is None or saved.python != current.python:
        return "unknown"
    return "same" if saved.digest == current.digest else "changed"


class _Printer:
    """Makes readings into fingerprints; what tasks share is read once."""

    def __init__(self, tasks: tuple[object, ...], packages: Collection[str] = ()) -> None:
        self._reader = Reader(tasks, packages)
        # By id; the value is kept beside what is known of it, so that its id stays its own.
        self._bare: dict[tuple[int, int], tuple[CodeType, Fingerprint]] = {}
        self._reached: dict[int, tuple[object, bytes, frozenset[str]]] = {}

    def take(self, task: object) -> Fingerprint:
        body = self._reader.body(task)
        if type(body) is not FunctionType or not _is_bare(body):
            return self._print(self._reader.read(body))
        key = (id(body.__code__), id(body.__globals__))
        if key not in self._bare:  # all functions of this code are the same
            self._bare[key] = (body.__code__, self._print(self._reader.read(body)))
        return self._bare[key][1]

    def outline(self, tasks: Mapping[str, object]) -> str:
        """Return the digest; functions that are only code are read once for all that differ in constants."""
        kinds: dict[tuple[object, ...], int | None] = {}
        rows: list[object] = []
        for task, body in zip(tasks.values(), self._reader.bodies, strict=True):
            number = None
            if type(body) is FunctionType and _is_bare(body):
                code = body.__code__
                if _SIMPLE.issuperset(map(type, code.co_consts)):
                    kind = (
                        code.co_code, code.co_names, code.co_varnames, code.co_argcount,
                        code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
                        code.co_exceptiontable, body.__module__, id(body.__globals__),
                    )  # fmt: skip
                    number = kinds.get(kind, -1)
                    if number == -1:
                        named = self._reader.names_in(body)
                        number = kinds[kind] = None if named is None else len(kinds)
                        rows.append((kind[:-2], named and tuple(self._print(named))))
            rows += (number, code.co_consts) if number is not None else self.take(task)
        return digest_of_plain((_WRITTEN, list(tasks), rows))

    def _print(self, reading: Reading) -> Fingerprint:
        texts, names = list(reading.parts), set(reading.not_seen)
        for lead in reading.leads:
            digest, reached = self._reach(lead)
            texts.append(digest.hex())
            names |= reached
        return Fingerprint(_PYTHON, digest_of(texts).hex(), tuple(sorted(names)))

    def _reach(self, helper: object) -> tuple[bytes, frozenset[str]]:
        """Return all that can be reached from a helper, in the order in which it is named. One that is
        met again is noted by its number, so that helpers may call each other in any way."""
        known = self._reached.get(id(helper))
        if known is not None:
            return known[1:]
        order, numbers = [helper], {id(helper): 0}
        texts: list[str] = []
        not_seen: set[str] = set()
        for value in order:  # which grows
            reading = self._reader.read(value)
            not_seen.update(reading.not_seen)
            texts += (*reading.parts, "leads to")
            for lead in reading.leads:
                if id(lead) not in numbers:
                    numbers[id(lead)] = len(order)
                    order.append(lead)
                texts.append(str(numbers[id(lead)]))
        known = self._reached[id(helper)] = (helper, digest_of(texts), frozenset(not_seen))
        return known[1:]


def digest_of_plain(value: Any) -> str:
    """Return a digest of texts, numbers and lists of them: marshal format 2 writes equal ones alike."""
    return blake2b(marshal.dumps(value, 2), digest_size=16).hexdigest()


def _is_bare(function: FunctionType) -> bool:
    """Return whether it has nothing of its own beside the code."""
    return not (function.__closure__ or function.__defaults__ or function.__kwdefaults__ or function.__dict__)

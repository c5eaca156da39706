"""Bisecting: the first checkpoint of a session in which something is wrong. No pickle is opened.

The session's current line is searched as if it was right up to some cut and wrong from there on: of a
thousand cuts ten are looked at. A condition sees the values of the channel by their names; beside them
`steps`, `status`, `sequence`, `metadata`, `tasks` (what each has come to), `results` (by task), and `values`:
all values in one dict, for names that are no words. Where one of the names is not there yet all is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.difference import standings
from graflow_ckpt.checkpoint.history import newest
from graflow_ckpt.checkpoint.holdings import Holdings, holdings
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.conditions import BadCondition, Condition
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Readable


class Scope(Mapping[str, Any]):
    """What a condition may name. A value is taken apart when it is asked for."""

    def __init__(self, held: Holdings) -> None:
        self._held = held
        found = held.found
        self._facts: dict[str, Callable[[], Any]] = {
            "steps": lambda: found.facts["steps"],
            "status": lambda: found.facts["status"],
            "sequence": lambda: found.meta["sequence"],
            "metadata": lambda: dict(found.metadata.user_metadata),
            "tasks": lambda: standings(found.facts),
            "results": lambda: {name: value.seen() for name, value in held.results.items()},
            "values": lambda: {name: value.seen() for name, value in held.values.items()},
        }

    @cached_property
    def _names(self) -> list[str]:
        return [*self._held.values, *(name for name in self._facts if name not in self._held.values)]

    def __getitem__(self, name: str) -> Any:
        if name in self._held.values:
            return self._held.values[name].seen()
        return self._facts[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one cut that was looked at."""

    path: str
    steps: int
    sequence: int
    bad: bool


@dataclass(frozen=True, slots=True)
class Bisected:
    """`first_bad` is None if none is wrong, `last_good` if all are."""

    cuts: int
    looked_at: tuple[Verdict, ...]
    first_bad: Verdict | None
    last_good: Verdict | None
    damaged: tuple[tuple[str, CheckpointError], ...] = ()


def bisect(
    store: Readable,
    keyring: Keyring,
    session: str,
    bad: Condition,
    *,
    everything: bool = False,
    seen: Callable[[Verdict], None] = lambda verdict: None,
) -> Bisected:
    """Search; `everything`: look at all cuts, since right and wrong may take turns."""
    good: list[Found] = []
    damaged: list[tuple[str, CheckpointError]] = []
    for path, found in newest(store, keyring, session):
        if isinstance(found, Found):
            good.append(found)
        else:
            damaged.append((path, found))
    cuts, verdicts = good[::-1], dict[int, Verdict]()

    def is_bad(number: int) -> bool:
        if number not in verdicts:
            verdicts[number] = _look(store, keyring, cuts[number], bad, newest=number == len(cuts) - 1)
            seen(verdicts[number])
        return verdicts[number].bad

    first = _first_bad(len(cuts), is_bad, everything=everything)
    if first is not None:
        before = verdicts.get(first - 1)
    else:
        before = verdicts.get(len(cuts) - 1)
    looked_at = tuple(verdicts[number] for number in sorted(verdicts))
    return Bisected(len(cuts), looked_at, None if first is None else verdicts[first], before, tuple(damaged))


def _first_bad(count: int, is_bad: Callable[[int], bool], *, everything: bool) -> int | None:
    if everything:
        return next((number for number in [n for n in range(count) if is_bad(n)]), None)
    if not count or not is_bad(count - 1):
        return None
    if is_bad(0):
        return 0
    right, wrong = 0, count - 1
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if is_bad(middle):
            wrong = middle
        else:
            right = middle
    return wrong


def _look(store: Readable, keyring: Keyring, found: Found, bad: Condition, *, newest: bool) -> Verdict:
    scope = Scope(holdings(store, keyring, found.path))
    try:
        missing = any(name not in scope for name in bad.names)
        wrong = bool(bad.evaluate(scope)) if newest or not missing else False
    except BadCondition as error:
        error.ids["path"] = found.path
        error.hint = f"{error.hint} It was asked of {found.path}.".strip()
        raise
    return Verdict(found.path, int(found.facts["steps"]), int(found.meta["sequence"]), wrong)

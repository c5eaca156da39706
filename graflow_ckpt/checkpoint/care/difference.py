"""The difference between two checkpoints: how far each is, which tasks, which values. No pickle is opened.

They may be of one session or of two, and in different stores. Values count as changed by their
digests; what is shown of them is up to the caller. Plain values are decoded; live ones are
stand-ins (inert.py) that can be weighed, compared and, where they are numbers, looked at.

Bisecting: the first checkpoint of a session in which something is wrong. The session's current line is
searched as if it was right up to some cut and wrong from there on: of a thousand cuts ten are looked at. A
condition sees the values of the channel by their names; beside them `steps`, `status`, `sequence`,
`metadata`, `tasks` (the state of each), `results` (by task), and `values`: all values in one dict, for
names that are no words. Where one of the names is not there yet all is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from blake3 import blake3

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.history import Bad, good
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.seals import Keyring
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.checkpoint.values.codec import decode, encode
from graflow_ckpt.core.conditions import BadCondition, Condition
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.core.protocols import Readable


@dataclass(frozen=True, slots=True)
class HeldValue:
    """One value of a checkpoint. Equal digests: nothing has changed."""

    plain: bool
    kind: str
    size: int
    digest: str
    value: Any = field(compare=False)  # whatever it is; of a live one the stand-in

    def seen(self) -> Any:
        """Return what can be seen of it: attributes as dicts, arrays as lists."""
        return self.value if self.plain else inert.plainer(self.value)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The values, results and facts that one checkpoint holds."""

    found: Found
    values: dict[str, HeldValue]
    results: dict[str, HeldValue]  # by the name of the task


def holdings(store: Readable, keyring: Keyring, path: str) -> Holdings:
    """Verify a checkpoint and read its values: each chunk before anything of it is parsed."""
    found = archive.find(store, keyring, path)
    payload = archive.open_values(store, found, inert.load)
    try:
        values: dict[str, HeldValue] = {name: _plain(cell) for name, cell in payload["plain"].items()}
        values |= {name: _live(value) for name, value in payload["live"].items()}
        for name, items in payload["appended"].items():
            values[name] = _appended(values.get(name), items)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorrupt(
            f"The values of {path} do not hold together: {error!r}.", path=path
        ) from error
    results = {name.removesuffix(RESULT): held for name, held in values.items() if name.endswith(RESULT)}
    return Holdings(
        found, {name: held for name, held in sorted(values.items()) if not name.endswith(RESULT)}, results
    )


def _plain(cell: bytes) -> HeldValue:
    value = decode(cell)
    return HeldValue(True, type(value).__name__, len(cell), blake3(cell).hexdigest(16), value)


def _live(value: Any) -> HeldValue:
    size, digest = inert.weigh(value)
    return HeldValue(False, inert.kind_of(value), size, digest, value)


def _appended(base: HeldValue | None, items: list[tuple[str, Any]]) -> HeldValue:
    """Return a list with what was appended to it since it was written as a whole."""
    values = [decode(item) if tag == "plain" else item for tag, item in items]
    if base is not None:
        values = [*(base.value.items if isinstance(base.value, inert.Inert) else base.value), *values]
    plain = all(tag == "plain" for tag, _ in items) and (base is None or base.plain)
    return _plain(encode(values)) if plain else _live(values)


# --- comparing two -----------------------------------------------------------------------

DEPTH: Final = 6
MOST: Final = 20
"""Changes inside of one value that are reported."""

What = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one name."""

    name: str
    what: What
    before: Any = None  # a HeldValue, or JSON of the control facts
    after: Any = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference from one checkpoint to another."""

    before: Holdings
    after: Holdings
    facts: tuple[Change, ...]  # steps, status, …
    tasks: tuple[Change, ...]  # the state of each
    code: tuple[Change, ...]  # tasks of the graph, by fingerprint
    metadata: tuple[Change, ...]
    values: tuple[Change, ...]
    results: tuple[Change, ...]
    same: tuple[str, ...]  # values that are in both as they were

    def __bool__(self) -> bool:
        return any((self.facts, self.tasks, self.code, self.metadata, self.values, self.results))


_FACTS = ("session_id", "workflow", "status", "steps", "epoch", "sequence", "python", "library")


def difference(before: Holdings, after: Holdings) -> Difference:
    """Return what has changed from one to the other."""
    old, new = before.found, after.found
    return Difference(
        before,
        after,
        _changes(
            {name: old.meta.get(name) for name in _FACTS}, {name: new.meta.get(name) for name in _FACTS}
        ),
        _changes(standings(old.facts), standings(new.facts)),
        _changes(_prints(old.facts), _prints(new.facts)),
        _changes(old.metadata.user_metadata, new.metadata.user_metadata),
        _changes(before.values, after.values),
        _changes(before.results, after.results),
        tuple(name for name, held in before.values.items() if after.values.get(name) == held),
    )


def standings(facts: Document) -> dict[str, str]:
    """Return the state of each task: `done`, `done 3 times`, `pending`, `failed: …`."""
    found = {
        name: f"done {facts['enqueued'][name]} times" if facts["enqueued"].get(name, 1) > 1 else "done"
        for name in facts["completed_tasks"]
    }
    found |= dict.fromkeys(facts["skipped"], "skipped")
    for spec in facts["pending_tasks"]:
        cycle = f", cycle {spec['cycle']}" if spec["cycle"] else ""
        found[spec["task_id"]] = f"{spec['status']}{cycle}"
    return found | {name: f"failed: {error}" for name, error in facts["errors"].items()}


def inner(change: Change) -> list[Change]:
    """Return what has changed inside of a value made of dicts, or of an object's attributes: `.opt.step`.

    The size of such a part is not known: 0.
    """
    if change.what != "changed" or not (change.before.size and change.after.size):
        return []
    return _inside("", change.before.seen(), change.after.seen(), DEPTH)[:MOST]


def _inside(path: str, before: Any, after: Any, depth: int) -> list[Change]:
    if type(before) is not dict or type(after) is not dict or not depth:
        return []
    found: list[Change] = []
    for one in _changes(before, after):
        name = f"{path}.{one.name}"
        old = None if one.what == "added" else _part(one.before)
        new = None if one.what == "removed" else _part(one.after)
        found += _inside(name, one.before, one.after, depth - 1) or [Change(name, one.what, old, new)]
    return found


def _part(value: Any) -> HeldValue:
    return HeldValue(not isinstance(value, inert.Inert), inert.kind_of(value), 0, "", value)


def _prints(facts: Document) -> dict[str, Any]:
    return {
        name: (task.get("after"), task.get("print"), task.get("policy"))
        for name, task in facts.get("graph", {}).get("tasks", {}).items()
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    found = []
    for name in dict.fromkeys([*before, *after]):
        if name not in before:
            found.append(Change(name, "added", None, after[name]))
        elif name not in after:
            found.append(Change(name, "removed", before[name], None))
        elif not _same(before[name], after[name]):
            found.append(Change(name, "changed", before[name], after[name]))
    return tuple(found)


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, HeldValue) and isinstance(after, HeldValue):
        return (before.plain, before.kind, before.digest) == (after.plain, after.kind, after.digest)
    return type(before) is type(after) and bool(before == after)


# --- bisecting --------------------------------------------------------------------------


class Scope(dict[str, Callable[[], Any]]):
    """The names that a condition may use. A value is taken apart when it is asked for."""

    def __init__(self, held: Holdings) -> None:
        found = held.found
        super().__init__(
            steps=lambda: found.facts["steps"],
            status=lambda: found.facts["status"],
            sequence=lambda: found.meta["sequence"],
            metadata=lambda: dict(found.metadata.user_metadata),
            tasks=lambda: standings(found.facts),
            results=lambda: {name: value.seen() for name, value in held.results.items()},
            values=lambda: {name: value.seen() for name, value in held.values.items()},
        )
        self.update({name: value.seen for name, value in held.values.items()})

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name)()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one cut that was looked at."""

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
    damaged: Bad = []
    cuts, verdicts = [*good(store, keyring, session, damaged)][::-1], dict[int, Verdict]()

    def is_bad(number: int) -> bool:
        if number not in verdicts:
            verdicts[number] = _look(store, keyring, cuts[number], bad, newest=number == len(cuts) - 1)
            seen(verdicts[number])
        return verdicts[number].bad

    first = _first_bad(len(cuts), is_bad, everything=everything)
    before = verdicts.get((len(cuts) if first is None else first) - 1)
    looked_at = tuple(verdicts[number] for number in sorted(verdicts))
    return Bisected(len(cuts), looked_at, None if first is None else verdicts[first], before, tuple(damaged))


def _first_bad(count: int, is_bad: Callable[[int], bool], *, everything: bool) -> int | None:
    if everything:
        return next((number for number in [n for n in range(count) if is_bad(n)]), None)
    if not count or not is_bad(count - 1):
        return None
    return bisect_left(range(count - 1), True, key=is_bad)


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

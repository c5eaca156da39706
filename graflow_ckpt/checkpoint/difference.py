"""The difference between two checkpoints: how far each is, which tasks, which values. No pickle is opened.

They may be of one session or of two, and lie in different stores. Values count as changed by their
digests; what is to be shown of them is up to whoever shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from graflow_ckpt.checkpoint import inert
from graflow_ckpt.checkpoint.holdings import Held, Holdings
from graflow_ckpt.checkpoint.model import Document

DEPTH: Final = 6
MOST: Final = 20
"""Changes inside of one value that are told."""

What = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """Of one name."""

    name: str
    what: What
    before: Any = None  # a Held, or JSON of the control facts
    after: Any = None


@dataclass(frozen=True, slots=True)
class Difference:
    """From one checkpoint to another."""

    before: Holdings
    after: Holdings
    facts: tuple[Change, ...]  # steps, status, …
    tasks: tuple[Change, ...]  # what each has come to
    code: tuple[Change, ...]  # tasks of the graph, by fingerprint
    metadata: tuple[Change, ...]
    values: tuple[Change, ...]
    results: tuple[Change, ...]
    same: tuple[str, ...]  # values that are in both as they were

    def __bool__(self) -> bool:
        return any((self.facts, self.tasks, self.code, self.metadata, self.values, self.results))


_FACTS = ("session_id", "workflow", "status", "steps", "epoch", "sequence", "python", "library")


def difference(before: Holdings, after: Holdings) -> Difference:
    """What has become of one on the way to the other."""
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
    """What each task has come to: `done`, `done 3 times`, `pending`, `failed: …`."""
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
    """What has changed inside of a value that is made of dicts, or of an object's attributes: `.opt.step`.

    The size of such a part is not known: 0.
    """
    if change.what != "changed" or not (change.before.size and change.after.size):
        return []
    found = _inside("", change.before.seen(), change.after.seen(), DEPTH)
    return list(islice(found, MOST)) if found is not None else []


def _inside(path: str, before: Any, after: Any, depth: int) -> Iterator[Change] | None:
    if type(before) is not dict or type(after) is not dict or not depth:
        return None
    return _inside_dicts(path, before, after, depth)


def _inside_dicts(path: str, before: Any, after: Any, depth: int) -> Iterator[Change]:
    for one in _changes(before, after):
        name = f"{path}.{one.name}"
        deeper = _inside(name, one.before, one.after, depth - 1) if one.what == "changed" else None
        if deeper is not None:
            yield from deeper
        else:
            old = None if one.what == "added" else _part(one.before)
            yield Change(name, one.what, old, None if one.what == "removed" else _part(one.after))


def _part(value: Any) -> Held:
    return Held(not isinstance(value, inert.Inert), inert.kind_of(value), 0, "", value)


def _prints(facts: Document) -> dict[str, Any]:
    return {
        name: (task.get("after"), task.get("print"))
        for name, task in facts.get("graph", {}).get("tasks", {}).items()
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    return tuple(_told(before, after, dict.fromkeys([*before, *after])))


def _told(before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]) -> Iterable[Change]:
    for name in names:
        if name not in before:
            yield Change(name, "added", None, after[name])
        elif name not in after:
            yield Change(name, "removed", before[name], None)
        elif not _same(before[name], after[name]):
            yield Change(name, "changed", before[name], after[name])


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, Held) and isinstance(after, Held):
        return (before.plain, before.kind, before.digest) == (after.plain, after.kind, after.digest)
    return type(before) is type(after) and bool(before == after)

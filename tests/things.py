"""What lies in a keyed store, seen and changed from behind: by the calls of its driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.head import Head
from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.stores.lease import Step


class Content(NamedTuple):
    """One that lies there, whoever holds it."""

    scope: str
    mark: str
    name: str


def keyed(store: CheckpointStore) -> KeyedStore:
    assert isinstance(store, KeyedStore)
    return store


def keys(store: CheckpointStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in keyed(store).driver.keys(prefix)]


def head(store: CheckpointStore, scope: str = "s") -> Head:
    return keyed(store).heads.read(scope).head


def contents(store: CheckpointStore) -> Counter[Content]:
    """With their sizes."""
    found: Counter[Content] = Counter()
    for entry in keyed(store).driver.keys("data/"):
        _, scope, mark, *rest = entry.key.split("/")
        if len(rest) == 2:
            found[Content(scope, mark, rest[0])] += entry.size
    return found


def held(store: CheckpointStore) -> Counter[Content]:
    """Those that heads name, with the sizes that they say."""
    scopes = [key.partition("/")[2] for key in keys(store, "head/")]
    return Counter(
        {
            Content(scope, held.mark, held.name): held.size
            for scope in scopes
            for held in (*head(store, scope).held(), *head(store, scope).freed)
        }
    )


def keys_of_contents(store: CheckpointStore) -> list[str]:
    return [key for key in keys(store, "data/") if key.count("/") == 4]


def read(store: CheckpointStore, key: str) -> bytes:
    (found,) = keyed(store).driver.get(key)
    assert found is not None, key
    return found.data


def write(store: CheckpointStore, key: str, data: bytes) -> None:
    """Whatever stands there."""
    assert keyed(store).driver.batch([Put(key, data, fresh=False)])


def drop(store: CheckpointStore, gone: Iterable[str]) -> None:
    keyed(store).driver.batch([], list(gone))


def spoil(
    store: CheckpointStore, found: Iterable[str], change: Callable[[bytes], bytes]
) -> Callable[[], None]:
    """Change what stands under these keys; what comes back puts it right, where it still stands."""
    kept = {key: read(store, key) for key in found}
    for key, data in kept.items():
        write(store, key, change(data))

    def undo() -> None:
        there = set(keys(store, "data/"))
        for key in kept.keys() & there:
            write(store, key, kept[key])
        for scope in {key.split("/")[1] for key in kept}:
            keyed(store).heads.change(scope, lambda now: Step(now._replace(bad=frozenset())))

    return undo


def plant_segment(
    store: CheckpointStore, session: str, epoch: int, after: int, pieces: Iterable[bytes]
) -> None:
    """These records, in the place of all segments that a session has."""
    place, claim = keyed(store), "f" * 32
    drop(store, keys(store, f"journal/{session}/"))
    name = f"{epoch:010}-{after:012}-{claim}"
    found = [*pieces] if place.driver.atomic else [b"-", *pieces]
    for number, piece in enumerate(found):
        write(store, f"journal/{session}/{name}/{number:010}", piece)
    if not place.driver.atomic:
        place.heads.change(session, lambda now: Step(now._replace(segments=(name,))))

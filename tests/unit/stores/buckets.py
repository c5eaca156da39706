"""What the tests of the object store ask of one beside its own methods: names, keys, requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.objects import ObjectStore

LARGE = 10_000  # times its text: more than what goes with the record


def names(store: CheckpointStore, *args: str | None) -> list[str]:
    return [path.rpartition("/")[2] for path, _ in store.list(*args)]


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in store._all.bucket.list(prefix)]


@contextmanager
def requests(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the bucket is asked for meanwhile, in order."""
    made: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("get", "get_range", "_put", "delete", "list", "written_at"):
            patch.setattr(
                store._all.bucket, name, partial(_noted, made, name, getattr(store._all.bucket, name))
            )
        yield made


def _noted(made: list[str], name: str, operation: Callable[..., object], *args: object) -> object:
    if (name, *args) != ("delete", []):  # nothing is asked for that
        made.append(name)
    return operation(*args)

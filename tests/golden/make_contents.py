"""Writes what a bucket has that keeps contents, once: `python -m tests.golden.make_contents`.

A session's head with a table of contents, one that was damaged, one of a save that never ended; a name with
contents of its own. What is here was released, and has to be readable for ever.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.testing.holdings import content, name_of, put_holding
from graflow_ckpt.testing.trios import own_name
from tests.golden import layouts
from tests.object_servers import CREDENTIALS

FILE = Path(__file__).parent / "contents-1" / "objects.json"
SOME = [content(number, 300) for number in range(4)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for variable, value in CREDENTIALS.items():
            patch.setenv(variable, value)
        with layouts.place("objects", Path(folder)) as (url, server):
            store = ObjectStore(url)
            lease = store.acquire("s")
            first = put_holding(store, own_name(sequence=1), "one", SOME[:2], lease=lease)
            store.contents.distrust(first, name_of(SOME[1]), "one")
            put_holding(store, own_name(sequence=2), "two", SOME[:3], lease=lease, sequence=2)
            put_holding(store, "best", "three", SOME[2:], lease=lease)
            dead = store.contents.saving(own_name(sequence=3), lease=lease, stage="four")
            dead.hold([name_of(SOME[2])])
            FILE.parent.mkdir(exist_ok=True)
            FILE.write_text(layouts.dump("objects", url, server))


if __name__ == "__main__":
    main()

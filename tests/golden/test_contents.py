"""Checkpoints that have contents in common, as Redis has them: what was laid out once is read for ever.

    python -m tests.golden.test_contents        writes contents-1 where there is none

A layout that was released stays; a new one gets a new number (layouts.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.testing.holdings import content, held, put_holding, there
from graflow_ckpt.testing.trios import own_name, path_of
from tests.golden import layouts
from tests.servers import Server

HERE = Path(__file__).parent
NUMBER = 1
FILES = sorted(HERE.glob("contents-*/redis.json"))
ONE, TWO, THREE = (content(number, 100 + number) for number in (1, 2, 3))
HELD = {own_name(sequence=1): [ONE, TWO], own_name(sequence=2): [TWO, THREE], "best": [ONE]}


def test_the_current_layout_is_among_them() -> None:
    assert HERE / f"contents-{NUMBER}" / "redis.json" in FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_contents_are_read_shared_and_let_go_of(file: Path, redis_server: Server, redis_url: str) -> None:
    layouts.load("redis", redis_url, redis_server, file.read_text())
    store = RedisStore(redis_url)
    paths = {name: path_of(store, name) for name in HELD}
    assert {name: held(store, path) for name, path in paths.items()} == HELD

    third = put_holding(store, own_name(sequence=3), "new", [TWO])
    assert store.delete_many(paths.values()) == 3

    assert held(store, third) == [TWO]
    assert there(store, [ONE, TWO, THREE], own_name()) == {TWO}
    assert store.delete(third)
    assert redis_server.ask("KEYS", "*:contents*") == []


def main() -> None:
    target = HERE / f"contents-{NUMBER}" / "redis.json"
    with Server() as server:
        store = RedisStore(server.url)
        for number, (name, contents) in enumerate(HELD.items()):
            put_holding(store, name, f"n{number}", contents, sequence=number)
        target.parent.mkdir()
        target.write_text(layouts.dump("redis", server.url, server))


if __name__ == "__main__":
    main()

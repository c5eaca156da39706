"""A session is copied again and again while it goes on: no copy is damaged, each can be gone on from, and
the last one is what the session has come to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import EveryN, KeepLast, task, workflow
from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.contents import shares
from graflow_ckpt.checkpoint.copying import Move
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring
from tests.servers import Server

STEPS, COPIES = 24, 6
LARGE = bytes(range(256)) * 400  # where values are shared it is stored once


@pytest.fixture(params=["local", "sqlite", "redis", "postgres", "objects"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of the origin."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", "k1:" + "31" * 32)
    if request.param == "redis":
        with Server({"appendonly": "yes", "appendfsync": "always"}) as server:
            yield server.url
    elif request.param in ("local", "sqlite"):
        yield f"{tmp_path}/s" if request.param == "local" else f"sqlite:///{tmp_path}/s.db"
    else:
        yield request.getfixturevalue(f"{request.param}_url")


def standing(store: CheckpointStore, ring: Keyring) -> tuple[Any, int]:
    """What a resume finds: the newest cut, and how many records after it."""
    path, found = next(iter(history.newest(store, ring, "s")))
    assert isinstance(found, archive.Found), path
    after = found.facts["transition"]
    return found.meta["checkpoint_id"], len(list(history.records(store, ring, after, found, "s")))


def test_a_session_is_copied_again_and_again_while_it_goes_on(url: str, tmp_path: Path) -> None:
    origin = open_store(url)
    target = open_store(f"sqlite:///{tmp_path}/target.db" if shares(origin) else f"file://{tmp_path}/target")
    begun = threading.Semaphore(0)  # copies that the session may still go on beside
    failed: list[BaseException] = []

    def count_up() -> None:
        try:
            run(url, begun)
        except BaseException as error:  # noqa: BLE001  for the assertion below
            failed.append(error)

    session = threading.Thread(target=count_up, daemon=True)
    session.start()
    move = Move(origin, target, Keyring.reading(shared=origin.shared), Keyring.for_store(target))
    running = 0
    while session.is_alive():
        begun.release()
        moved = move.session("s")
        running += moved.running
        assert {cut.state for cut in moved.cuts} <= {"copied", "there", "gone"}
        for path, _ in target.list():
            archive.check(target, Keyring.for_store(target), path)
        if moved.error is None and any(cut.state != "gone" for cut in moved.cuts):
            standing(target, Keyring.for_store(target))
    session.join()

    assert failed == []
    assert running >= COPIES - 2  # all but the first and the last, at which it may begin and end
    assert move.session("s").error is None
    assert standing(target, Keyring.for_store(target)) == standing(origin, Keyring.for_store(origin))


def run(url: str, begun: threading.Semaphore) -> None:
    keep = KeepLast(2)  # so that cuts go while they are copied
    with workflow(
        "w", session_id="s", store=url, durability="journal", checkpoint=EveryN(3), keep=keep
    ) as flow:

        @task(inject_context=True)
        def count(context: Any, data: int = 0) -> int:
            if data % (STEPS // COPIES) == 0:
                begun.acquire()  # so that a copy falls into these steps
            context.get_channel().set("large", LARGE)
            context.get_channel().set("sum", data)
            if data + 1 < STEPS:
                context.next_iteration(data + 1)
            return data

        flow.execute()

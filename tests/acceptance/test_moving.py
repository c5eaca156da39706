"""Sessions that are copied while they run, again and again, and from each kind of stores to each.

No copy is damaged, each can be gone on from, and the last one is what the session has come to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from graflow_ckpt import EveryN, KeepLast, task, workflow
from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.care.copying import Move, Moved
from graflow_ckpt.checkpoint.values.contents import shares
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, new_key
from tests.object_servers import CREDENTIALS, ObjectServer
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


# --- from each kind of stores to each ---------------------------------------------------


if TYPE_CHECKING:
    from tests.postgres_servers import PostgresServer

KINDS = ("memory", "local", "redis", "sqlite", "postgres", "objects")
AOF = {"appendonly": "yes", "appendfsync": "always"}  # else that store keeps no journal
LIMIT, AT = 6, 4  # steps, and the one in which everything is copied


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, object_server: ObjectServer
) -> Iterator[dict[str, tuple[str, str]]]:
    """Of each kind two places."""
    from graflow_ckpt.stores.drivers.postgres.store import PostgresStore

    folder = tmp_path_factory.mktemp("places")
    with ExitStack() as stack:
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in CREDENTIALS.items():
            variables.setenv(name, value)
        variables.setenv("GRAFLOW_CKPT_KEY", new_key())
        redis = stack.enter_context(Server(AOF))
        databases = postgres_server.database(), postgres_server.database()
        for url in databases:
            store = PostgresStore(url)
            store.schema.upgrade()
            store.close()
        yield {
            "memory": ("memory://one", "memory://two"),
            "local": (f"{folder}/one", f"{folder}/two"),
            "redis": (f"redis://{redis.host}:{redis.port}/0", f"redis://{redis.host}:{redis.port}/1"),
            "sqlite": (f"sqlite:///{folder}/one.db", f"sqlite:///{folder}/two.db"),
            "postgres": databases,
            "objects": (object_server.url, object_server.url),
        }


def counting(store: str, session: str, at: Any = None, **options: Any) -> tuple[Any, list[int]]:
    """The result of a session, and the steps that were run for it; `at` is called in the middle of one."""
    ran: list[int] = []
    with workflow(
        "count", session_id=session, store=store, durability="journal", checkpoint=EveryN(3), **options
    ) as ctx:

        @task(inject_context=True)
        def count(context: Any, data: int = 0) -> int:
            ran.append(data)
            assert context.get_channel().get("large", LARGE) == LARGE
            context.get_channel().set("large", LARGE)
            context.get_channel().set("sum", context.get_channel().get("sum", 0) + data)
            context.get_channel().set("live", {"text": "x" * 2000, "function": sorted})
            if data == AT and at is not None:
                at()
            if data + 1 < LIMIT:
                context.next_iteration(data + 1)
            return int(context.get_channel().get("sum"))

        return ctx.execute(), ran


def move(origin: CheckpointStore, target: CheckpointStore) -> Move:
    return Move(origin, target, Keyring.reading(shared=origin.shared), Keyring.for_store(target))


def parts(store: CheckpointStore, session: str) -> dict[str, Any]:
    """Digests of all parts, by the id of the checkpoint."""
    metas = [json.loads(raw) for _, raw in store.list(session)]
    return {meta["checkpoint_id"]: meta["parts"] for meta in metas}


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_session_is_copied_everywhere_with_its_digests_and_goes_on_from_each(
    kind: str, places: dict[str, tuple[str, str]]
) -> None:
    origin, session = open_store(places[kind][0]), f"from-{kind}"
    targets = {name: open_store(places[name][1]) for name in KINDS}
    moved: dict[str, Moved] = {}
    seen: dict[str, dict[str, Any]] = {}

    def copy_everywhere() -> None:
        for name, target in targets.items():
            moved[name] = move(origin, target).session(session)
            seen[name] = parts(origin, session)

    result, ran = counting(places[kind][0], session, copy_everywhere)

    assert (result, ran) == (15, [0, 1, 2, 3, 4, 5])
    for name, target in targets.items():
        assert {cut.state for cut in moved[name].cuts} == {"copied"}, name
        assert moved[name].running
        assert moved[name].records > 0, name
        if shares(origin) == shares(target):
            assert parts(target, session) == seen[name] != {}
        for path, _ in target.list(session):
            archive.check(target, Keyring.for_store(target), path)
        went_on = counting(places[name][1], session, resume="must")
        assert went_on == (15, [4, 5]), name

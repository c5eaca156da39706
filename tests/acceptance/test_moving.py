"""Sessions that move: from each of six kinds of stores to each of them, while they run, and go on there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from graflow_ckpt import EveryN, task, workflow
from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.contents import shares
from graflow_ckpt.checkpoint.copying import Move, Moved
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring, new_key
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.servers import Server

if TYPE_CHECKING:
    from tests.postgres_servers import PostgresServer

KINDS = ("memory", "local", "redis", "sqlite", "postgres", "objects")
AOF = {"appendonly": "yes", "appendfsync": "always"}  # else that store keeps no journal
LARGE = bytes(range(256)) * 400  # where values are shared it is stored once
LIMIT, AT = 6, 4  # steps, and the one in which everything is copied


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, object_server: ObjectServer
) -> Iterator[dict[str, tuple[str, str]]]:
    """Of each kind two places."""
    from graflow_ckpt.stores.postgres import PostgresStore

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

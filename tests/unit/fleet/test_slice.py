"""A slice beside others: what its keeper does while a body runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graflow_ckpt import workflow
from graflow_ckpt.engine.reaping import Keeper
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.sessions.redis.tables import frozen
from tests.acceptance.elsewhere import Fleet
from tests.loops import of
from tests.servers import Server
from tests.stretch import LONG, until
from tests.unit.fleet.played import tokens

AT_WORK: dict[str, Any] = {}
LEASE = 1.2  # seconds; it is renewed each 0.4


@pytest.fixture
def server(own_redis: Callable[..., Server]) -> Server:
    return own_redis({"appendonly": "yes", "appendfsync": "always"})


@pytest.fixture
def fleet(server: Server, keyring: object) -> Iterator[Fleet]:
    made = Fleet(server.url, "", workers=1, budget=60.0)
    made.workers[0].lease, made.workers[0].keeper = LEASE, Keeper(LEASE)
    yield made
    made.close()


def submitted(fleet: Fleet, *bodies: Any) -> Handle:
    with workflow("w") as flow:
        flow.add(*(of(body, f"t{n}") for n, body in enumerate(bodies)))
    return fleet.client.submit(flow.graph, flow.settings, list(flow.graph.roots()), {}, Terms("s"))


def work(fleet: Fleet, handle: Handle, **more: Any) -> None:
    """Run the slice; its keeper looks at nothing before the first body opens the gate."""
    gate, token = threading.Event(), fleet.token()
    AT_WORK.update(more, fleet=fleet, handle=handle, gate=gate)
    fleet.workers[0].watched_by(lambda: None, lambda: gate.wait(LONG) and None)
    assert token is not None
    fleet.workers[0].run(*token)


def freezes() -> None:
    fleet, handle = AT_WORK["fleet"], AT_WORK["handle"]
    with frozen(fleet.client.link, "s"):
        AT_WORK["gate"].set()
        for _ in range(3):
            (before,) = tokens(handle).values()
            until(lambda before=before: max(tokens(handle).values()) > before, 3 * LEASE)
    until(lambda: len(tokens(handle)) == 2)


def short() -> None: ...


def test_a_lease_is_renewed_while_the_session_is_frozen_and_work_waits(fleet: Fleet) -> None:
    """The keeper asks for another worker, which a frozen session refuses: it asks again when it is thawed."""
    handle = submitted(fleet, freezes, short, short)

    work(fleet, handle)

    assert handle.status().status == "completed"


def loses_its_server() -> None:
    handle, server, caplog = AT_WORK["handle"], AT_WORK["server"], AT_WORK["caplog"]
    server.kill()
    AT_WORK["gate"].set()
    until(lambda: "keeper: " in caplog.text)
    server.start()
    until(lambda: len(tokens(handle)) == 2)


def test_another_worker_is_asked_for_after_an_outage_in_which_that_failed(
    fleet: Fleet, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    handle = submitted(fleet, loses_its_server, short, short)

    work(fleet, handle, server=server, caplog=caplog)

    assert handle.status().status == "completed"

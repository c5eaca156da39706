"""Moves: a session of a fleet begins where a checkpoint was taken, and workers go on with it.

    rewind   the session as it was then, under its own id; refused while somebody works on it
    fork     another session that begins as that one was

The checkpoint is one that holds everything: a portable one of a session in Redis, or one of memory. Its
program is the one that workers have had, if their server still has it; else what the checkpoint carries,
run by default settings.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from graflow_ckpt.checkpoint import parcel as parcels
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.moving import Destination, Opened, forked, opening, rewound
from graflow_ckpt.engine.preflight import check_graph
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.programs import Packed, ProgramMissing, proof
from graflow_ckpt.stores.keys import Keyring

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Client


def rewind(client: Client, path: str, *, store: str | None = None) -> str:
    """The session's id."""
    opened = opening(path, store)
    session = opened.state.session
    to = _destination(client, opened, session)
    with _listed(client, session):
        rewound(opened, to)
    return session


def fork(client: Client, path: str, session_id: str | None = None, *, store: str | None = None) -> str:
    """The new session's id."""
    opened = opening(path, store)
    session = check_session_id(session_id or uuid.uuid4().hex[:12])
    to = _destination(client, opened, session)
    with _listed(client, session):
        forked(opened, to, session)
    return session


@contextmanager
def _listed(client: Client, session: str) -> Iterator[None]:
    """Before it is there, should this process die; and again: what is not there is taken off the lists."""
    client.enlist(session)
    yield
    client.enlist(session)


def _destination(client: Client, opened: Opened, session: str) -> Destination:
    keyring = client.keyring or Keyring.load(local=False)
    opened.graph.compile(opened.state.starts or opened.graph.roots())
    carried = opened.carried
    store = carried["store"] if "code" in carried else client.link.address  # where workers can write
    digest, starts = _program(client, opened, keyring), json.dumps(opened.state.starts)
    routes = opened.graph.routes.items()
    asks = {name: o for name, route in routes if (o := route.options.on_interrupted) != "rerun"}
    facts: dict[str, str | bytes] = {
        "code": digest, "store": store, "io": json.dumps(asks),
        "tasks": str(sum(isinstance(node, Task) for node in opened.graph.nodes.values())),
        "proof": proof(SealedCells(session, keyring), digest, starts, store),
        "flags": "f" + ("l" if "l" in carried.get("flags", "") else ""),
    }  # fmt: skip
    return Destination(client.link, facts, keyring, client.post)


def _program(client: Client, opened: Opened, keyring: Keyring) -> str:
    """The digest of the program that workers are given."""
    carried = opened.carried
    if digest := carried.get("code"):
        with suppress(ProgramMissing, UnknownKey, UnsafeCheckpoint):
            client.programs.parcel(digest)
            return digest
    settings = Settings(workflow=carried["workflow"]).with_stored(opened.found.meta.get("settings"))
    settings = replace(settings, max_parallel=opened.state.cap)
    calls, given = "bag" in carried, tuple(opened.state.values)
    if not calls:
        check_graph(opened.graph, settings, given, shared=True)
    packed = Packed.of(
        parcels.make(
            opened.graph,
            carried["workflow"],
            settings,
            calls=calls,
            given=given,
            settings=settings.document(),
        )
    )
    client.programs.store(packed, keyring)
    return packed.digest

"""The examination of a fleet: its server, the key, RQ, who works, and what nobody can work on."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from graflow_ckpt.core.errors import CheckpointError, PackageMissing, ServerError
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.connecting import connect
from graflow_ckpt.interfaces.cli.manner import Finding
from graflow_ckpt.interfaces.sources import unknown
from graflow_ckpt.stores.keys import Keyring, uses_local_key

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Client
    from graflow_ckpt.fleet.health import PoolFacts
    from graflow_ckpt.interfaces.settings import Resolved

LATE = 5.0  # seconds after which a pool should have given a sign of life
RQ = ((2, 9), (3,))  # from, and below
_VERDICTS = {"ok": "ok", "warning": "warning", "error": "bad"}


def examine_fleet(resolved: Resolved) -> Iterator[Finding]:
    """All of it, as far as it can be reached."""
    yield Finding("settings", "ok", resolved.file or "of the environment, no file")
    for name in unknown():
        yield Finding("settings", "warning", f"{name} is set, and nothing reads it")
    yield _key()
    try:
        client = connect(resolved)
    except (ServerError, PackageMissing) as error:
        yield Finding("server", "bad", str(error))
        return
    except CheckpointError:  # the key, which has been told already
        return
    yield from _servers(client, resolved)
    yield from _rights(client)
    yield _rq()
    yield from _work(client)


def _key() -> Finding:
    if uses_local_key():
        said = "none is set, so nothing can be submitted or run: GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE"
        return Finding("fleet key", "bad", said)
    try:
        return Finding("fleet key", "ok", ", ".join(Keyring.load(local=False).ids))
    except CheckpointError as error:
        return Finding("fleet key", "bad", str(error))


def _servers(client: Client, resolved: Resolved) -> Iterator[Finding]:
    from graflow_ckpt.links.examination import examine
    from graflow_ckpt.links.redis import open_link

    links = {"server": client.link}
    if resolved.rq_url is not None:
        links["rq server"] = open_link(resolved.rq_url)
    for what, link in links.items():
        for one in examine(link):
            yield Finding(what, _VERDICTS[one.level], f"{one.what} {one.hint}".strip())


def _rights(client: Client) -> Iterator[Finding]:
    """Sessions and queues are tried, with the rights of this user."""
    from graflow_ckpt.fleet.health import hears, try_queue, try_session

    try:
        try_session(client.link)
        try_queue(client.carrier)
    except ServerError as error:
        yield Finding("rights", "bad", f"a trial session was refused: {error}")
        return
    yield Finding("rights", "ok", "a trial session was made, worked on and taken away")
    if not hears(client.link):
        said = "this user may not use channels (&graflow:*): who follows a session looks ten times a second"
        yield Finding("rights", "warning", said)


def _rq() -> Finding:
    version = metadata.version("rq")
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if number < RQ[0]:
        return Finding("rq", "bad", f"{version} is too old: pip install -U 'rq>=2.9,<3'")
    if number >= RQ[1]:
        return Finding("rq", "warning", f"{version}; from 2.9 on and below 3 is what this is tested with")
    return Finding("rq", "ok", version)


def _work(client: Client) -> Iterator[Finding]:
    from graflow_ckpt.fleet.health import pools
    from graflow_ckpt.fleet.status import UNKNOWN
    from graflow_ckpt.interfaces.cli.outlook import Overview

    alive = pools(client.link)
    if not alive:
        yield Finding("workers", "warning", "no worker gives a sign of life: graflow-ckpt worker")
    yield from map(_pool, alive)
    versions = sorted({pool.version for pool in alive})
    if len(versions) > 1:
        yield Finding("workers", "warning", f"of several versions: {', '.join(versions)}")
    outlook = Overview(client, 1000).look()
    for queue in outlook.queues:
        if queue.ready and not queue.workers:
            said = f"{words.counted(queue.ready, 'task')} in queue {queue.name}, which no worker serves"
            yield Finding("queues", "bad", said)
    for row in outlook.sessions:
        if row.status == UNKNOWN:
            yield Finding("sessions", "bad", row.reason)
            continue
        for host, why in client.session(row.session).declined().items():
            yield Finding("code", "warning", f"session {row.session}, {host}: {why}")


def _pool(pool: PoolFacts) -> Finding:
    n = words.counted(len(pool.workers), "worker")
    said = f"{pool.pool}: {n} on {', '.join(pool.queues)}, {pool.version}, Python {pool.python}"
    if pool.age > LATE:
        return Finding("workers", "warning", f"{said}; no sign of life for {pool.age:.0f} s")
    return Finding("workers", "ok", f"{said}{', draining' if pool.draining else ''}")

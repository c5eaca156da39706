"""Workers that are played by hand: they begin on tokens, claim and commit, and die when the test says so."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from graflow_ckpt import task, workflow
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.facts import Claim
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.links.processes import myself
from graflow_ckpt.sessions.redis.keys import START, keys_of
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession


def bag(client: Client, session: str, tasks: int = 3, **options: Any) -> Handle:
    """A session of tasks `t0`, `t1` … that are all ready."""
    with workflow(session) as flow:
        for number in range(tasks):
            flow.add(task_of(f"t{number}", **options))
    return client.submit(flow.graph, flow.settings, list(flow.graph.roots()), {}, Terms(session))


def task_of(name: str, **options: Any) -> Any:
    @task(id=name, **options)
    def body() -> None: ...

    return body


def dead() -> Owner:
    """A process of this machine that has ended."""
    return replace(myself(), pid=2**22 - 7, started="1")


class Player:
    """One worker and its token."""

    def __init__(
        self,
        client: Client,
        session: str,
        *,
        lease: float = 15.0,
        owner: Owner | None = None,
        token: str = "",
    ) -> None:
        self.client = client
        self.owner = json.dumps(asdict(owner or myself()))
        key = f"{keys_of(session)}c"
        if not token:
            queue = client.carrier.queue("default")
            name = next(name for name in queue.job_ids if name.startswith(f"{session}-"))
            queue.remove(name)
            token = name.rpartition("-")[2]
        reply = client.link.script(START)([key], [token, self.owner, int(lease * 1000), "", new_nonce()])
        assert reply[0] != b"fenced", "the token is taken"
        self.token = token
        cells = SealedCells(session, client.keyring)
        where, began = reply[2].decode(), reply[3].decode()
        self.session = RedisSession(client.link, session, cells, token, began, queue=where, retires=True)
        self.session.posts_by(lambda other, queue: client.carrier.post(session, other, queue))

    def claim(self) -> Claim:
        return self.session.commit([("claim", 1)])[0]

    def close(self) -> None:
        self.session.close()


def at_work(client: Client, session: str = "s", tasks: int = 1, **player: Any) -> tuple[Handle, Player]:
    """A session of tasks, and a worker that has claimed the first."""
    handle = bag(client, session, tasks)
    worker = Player(client, session, **player)
    worker.claim()
    return handle, worker


def set_status(client: Client, session: str, status: str) -> None:
    """Behind the back of the scripts."""
    redis: Any = client.link.client
    line = redis.hget(f"{keys_of(session)}c", "c").decode().split("|")
    redis.hset(f"{keys_of(session)}c", "c", "|".join([status, *line[1:]]))


def tokens(handle: Handle) -> dict[str, float]:
    """The tokens of a session and their leases."""
    redis = handle._link.client
    return {
        token.decode(): lease
        for token, lease in redis.zrange(f"{keys_of(handle.session)}tok", 0, -1, withscores=True)
    }

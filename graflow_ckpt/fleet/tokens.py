"""Tokens: RQ moves them, and that is all it is asked to do.

A token says: session S has work in queue Q. It is an RQ job with two strings, carried as JSON; no
pickle is on the wire. Retries, results, callbacks, dependencies and RQ's own recovery are not used:
whether a token still counts is for the session to say, which refuses a void one in one round trip.

Promise: of all that RQ keeps in Redis only names are read, here and in worker.py, and a name that is
none of ours is passed over. No job is restored: a user who can write there could name a function to import
and call, or an address to send something to.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from redis import RedisError
from rq import Queue
from rq.serializers import JSONSerializer
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from graflow_ckpt.core.errors import KeyTaken, ServerError
from graflow_ckpt.fleet.lists import asked
from graflow_ckpt.links.complaints import code_of, in_our_words, taken, translated
from graflow_ckpt.links.redis import RedisLink

log = logging.getLogger("graflow_ckpt.fleet")

RUN_SLICE = "graflow_ckpt.fleet.slice.run_slice"
FAILURE_TTL = 3600
PREFIX = "graflow-"

_NAME = re.compile(rb"(?P<session>[A-Za-z0-9_-]{1,64})-(?P<token>e\d{1,18}t\d{1,18}(?:_[a-z0-9_]{1,80})?)")
_MOST = 1000  # executions of one job that are looked at


def queue_name(queue: str) -> str:
    """Return the RQ queue of a task queue; a name of its own, so that jobs of other programs are not met."""
    return PREFIX + queue


def job_id(session: str, token: str) -> str:
    return f"{session}-{token}"


def token_in(name: bytes) -> tuple[str, str] | None:
    """Return session and token that the name of a job means; None for any other name."""
    found = _NAME.fullmatch(name)
    return (found["session"].decode(), found["token"].decode()) if found else None


class Carrier:
    """Puts tokens into RQ's queues."""

    def __init__(self, link: RedisLink) -> None:
        self.link = link
        self.connection: Any = link.client  # a redis.Redis, whose types allow a coroutine
        self._queues: dict[str, Queue] = {}

    def queue(self, queue: str) -> Queue:
        found = self._queues.get(queue)
        if found is None:
            name = queue_name(queue)
            found = self._queues[queue] = Queue(name, connection=self.connection, serializer=JSONSerializer)
        return found

    def post(self, session: str, token: str, queue: str) -> None:
        """Give the token to a worker that listens on the queue."""
        pipe, name, waits = self.connection.pipeline(), job_id(session, token), self.queue(queue)
        with translated(self.link.address):
            waits.enqueue_call(
                RUN_SLICE,
                args=(session, token),
                timeout=-1,  # a slice keeps its own time
                result_ttl=0,
                failure_ttl=FAILURE_TTL,
                job_id=name,
                pipeline=pipe,
            )
            replies = pipe.execute(raise_on_error=False)
        for error in (reply for reply in replies if isinstance(reply, RedisError)):
            if code_of(error) != "WRONGTYPE":
                raise in_our_words(error, self.link.address)
            wrong = self._taken({waits.key: "list", Queue.redis_queues_keys: "set", f"rq:job:{name}": "hash"})
            if waits.key in wrong.ids["keys"]:  # what a worker needs
                raise wrong
            log.error("%s", wrong)

    def _taken(self, kinds: dict[str, str]) -> KeyTaken:
        return taken(self.link.address, kinds, self.connection.type)

    def offer(self, session: str, token: str, queue: str) -> None:
        """Post in mid-work: if RQ's server is away, a steward posts it, for the session knows of it."""
        try:
            self.post(session, token, queue)
        except ServerError as error:
            facts = {"session": session, "token": token}
            log.warning("token %s of session %s waits for a steward: %s", token, session, error, extra=facts)

    def post_again(
        self, session: str, token: str, queue: str, waiting: Collection[str] | None = None
    ) -> bool:
        """Post a token that no worker has begun on, unless it is still in its queue, or in `waiting`."""
        if job_id(session, token) in (self.ids(queue) if waiting is None else waiting):
            return False
        self.withdraw(session, token)
        self.post(session, token, queue)
        return True

    def withdraw(self, session: str, token: str, queue: str = "") -> None:
        """Delete what RQ still knows of a token that is void. `queue`: where it is, if that is known."""
        name = job_id(session, token)
        key, executions = f"rq:job:{name}", f"rq:executions:{name}"
        client = self.connection
        with translated(self.link.address):
            pipe = client.pipeline(transaction=False).hget(key, "origin").zrange(executions, 0, _MOST)
            origin, ids = pipe.execute(raise_on_error=False)
        ours = origin.decode() if isinstance(origin, bytes) and origin.isascii() else ""
        queues = {queue_name(queue)} if queue else set()
        queues |= {ours} if ours.startswith(PREFIX) else set()
        runs = [f"{name}:".encode() + run for run in ids] if isinstance(ids, list) else []
        pipe = client.pipeline(transaction=False)
        pipe.delete(key, executions, f"{key}:dependents", *(b"rq:execution:" + run for run in runs))
        for where in queues:
            waits = Queue(where, connection=client, serializer=JSONSerializer)
            pipe.lrem(waits.key, 0, name).lrem(waits.intermediate_queue_key, 0, name)
            if runs:
                pipe.zrem(waits.started_job_registry.key, *runs)
        with translated(self.link.address):
            pipe.execute(raise_on_error=False)  # what is no list holds no job

    def ids(self, queue: str) -> set[str]:
        """Return the jobs that wait in a queue."""
        key = self.queue(queue).key
        with asked(self.link, **{key: "list"}):
            return {name.decode(errors="replace") for name in self.connection.lrange(key, 0, -1)}

    def begun(self) -> tuple[dict[tuple[str, str], str], list[KeyTaken]]:
        """Return tokens that a worker has taken or begun on, for all that RQ knows, with their queues.

        And the keys under which something else is kept.
        """
        with asked(self.link, **{Queue.redis_queues_keys: "set"}):
            names = self.connection.smembers(Queue.redis_queues_keys)
        prefix = f"{Queue.redis_queue_namespace_prefix}{PREFIX}".encode()
        queues = [n.removeprefix(prefix).decode() for n in names if n.startswith(prefix) and n.isascii()]
        found, wrong = dict[tuple[str, str], str](), list[KeyTaken]()
        for queue in queues:
            waits = self.queue(queue)
            kinds: dict[str, str] = {
                waits.started_job_registry.key: "zset", waits.intermediate_queue_key: "list"
            }  # fmt: skip
            begun, taken_off = kinds
            pipe = self.connection.pipeline(transaction=False).zrange(begun, 0, -1).lrange(taken_off, 0, -1)
            with translated(self.link.address):
                replies = pipe.execute(raise_on_error=False)
            if any(isinstance(reply, RedisError) for reply in replies):
                wrong.append(self._taken(kinds))
            for names in replies:
                for name in names if isinstance(names, list) else ():
                    if (run := token_in(name.partition(b":")[0])) is not None:
                        found[run] = queue
        return found, wrong

    def taken_by_nobody(self, queue: str) -> list[tuple[str, str]]:
        """Return tokens taken from the queue and not reported to RQ: a worker is about to, or it has died."""
        key = self.queue(queue).intermediate_queue_key
        with asked(self.link, **{key: "list"}):
            names = self.connection.lrange(key, 0, -1)
        return [run for name in names if (run := token_in(name)) is not None]

    def forget_workers(self) -> None:
        """Take workers off RQ's lists whose signs of life have ended."""
        with asked(self.link, **{REDIS_WORKER_KEYS: "set"}):
            names = list(self.connection.smembers(REDIS_WORKER_KEYS))
            pipe = self.connection.pipeline(transaction=False)
            for name in names:
                pipe.exists(name)
            gone = [name for name, there in zip(names, pipe.execute(), strict=True) if not there]
        if gone:
            self._unlist(gone, [name.removeprefix(PREFIX) for name in self._queues])

    def bury(self, worker: str, queues: Sequence[str]) -> None:
        """Forget a worker that has died: RQ would list it for minutes."""
        key = f"rq:worker:{worker}".encode()
        self._unlist([key], queues)
        with translated(self.link.address):
            self.connection.delete(key)

    def _unlist(self, keys: Sequence[bytes], queues: Iterable[str]) -> None:
        pipe = self.connection.pipeline(transaction=False)
        for where in (REDIS_WORKER_KEYS, *(WORKERS_BY_QUEUE_KEY % queue_name(queue) for queue in queues)):
            pipe.srem(where, *keys)
        with translated(self.link.address):
            pipe.execute(
                raise_on_error=False
            )  # advisory, and where something else is kept no worker is listed

    def waiting(self, queues: Iterable[str]) -> dict[str, int]:
        """Return how many tokens wait in each queue; none in one that is no list."""
        names = list(queues)
        pipe = self.connection.pipeline(transaction=False)
        for queue in names:
            pipe.llen(self.queue(queue).key)
        with translated(self.link.address):
            counts = pipe.execute(raise_on_error=False) if names else []
        return {queue: n if isinstance(n, int) else 0 for queue, n in zip(names, counts, strict=True)}

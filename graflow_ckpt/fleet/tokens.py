"""Tokens: RQ moves them, and that is all it is asked to do.

A token says: session S has work in queue Q. It is an RQ job with two strings, carried as JSON; no
pickle is on the wire. Retries, results, callbacks, dependencies and RQ's own recovery are not used:
whether a token still counts is for the session to say, which refuses a void one in one round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from redis import Redis, RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.serializers import JSONSerializer

log = logging.getLogger("graflow_ckpt.fleet")

RUN_SLICE = "graflow_ckpt.fleet.slice.run_slice"
FAILURE_TTL = 3600
PREFIX = "graflow-"


def queue_name(queue: str) -> str:
    """The RQ queue of a task queue; a name of its own, so that jobs of other programs are not met."""
    return PREFIX + queue


def job_id(session: str, token: str) -> str:
    return f"{session}-{token}"


class Carrier:
    """Puts tokens into RQ's queues."""

    def __init__(self, connection: Redis) -> None:
        self.connection = connection
        self._queues: dict[str, Queue] = {}

    def queue(self, queue: str) -> Queue:
        found = self._queues.get(queue)
        if found is None:
            name = queue_name(queue)
            found = self._queues[queue] = Queue(name, connection=self.connection, serializer=JSONSerializer)
        return found

    def kinds(self, queue: str) -> dict[str, str]:
        """The keys that RQ needs for a queue, and what they hold."""
        return {self.queue(queue).key: "list", Queue.redis_queues_keys: "set"}

    def post(self, session: str, token: str, queue: str) -> None:
        """Somebody who listens on the queue will be given the token."""
        self.queue(queue).enqueue_call(
            RUN_SLICE,
            args=(session, token),
            timeout=-1,  # a slice keeps its own time
            result_ttl=0,
            failure_ttl=FAILURE_TTL,
            job_id=job_id(session, token),
        )

    def offer(self, session: str, token: str, queue: str) -> None:
        """The same in mid-work: if RQ's server is away, a steward posts it, for the session knows of it."""
        try:
            self.post(session, token, queue)
        except RedisError as error:
            facts = {"session": session, "token": token}
            log.warning("token %s of session %s waits for a steward: %s", token, session, error, extra=facts)

    def post_again(
        self, session: str, token: str, queue: str, waiting: Collection[str] | None = None
    ) -> bool:
        """For a token that nobody has begun on: unless it still waits in its queue, or is in `waiting`."""
        if job_id(session, token) in (self.ids(queue) if waiting is None else waiting):
            return False
        self.withdraw(session, token)
        self.post(session, token, queue)
        return True

    def withdraw(self, session: str, token: str) -> None:
        """Whatever RQ still knows of a token that is void."""
        name = job_id(session, token)
        try:
            job = Job.fetch(name, self.connection, serializer=JSONSerializer)
            IntermediateQueue(Queue.redis_queue_namespace_prefix + job.origin, self.connection).remove(name)
            job.delete()
        except (NoSuchJobError, ValueError):  # ValueError: what RQ noted of its execution has expired
            self.connection.delete(Job.key_for(name))

    def ids(self, queue: str) -> set[str]:
        """The jobs that wait in a queue."""
        return set(self.queue(queue).job_ids)

    def begun(self) -> set[tuple[str, str]]:
        """Tokens that a worker has begun on, for all that RQ knows."""
        client: Any = self.connection
        found = set()
        for key in client.smembers(Queue.redis_queues_keys):
            name = key.decode().removeprefix(Queue.redis_queue_namespace_prefix)
            if name.startswith(PREFIX):
                registry = self.queue(name.removeprefix(PREFIX)).started_job_registry
                for execution in client.zrange(registry.key, 0, -1):
                    session, _, token = execution.decode().partition(":")[0].rpartition("-")
                    found.add((session, token))
        return found

    def taken_by_nobody(self, queue: str) -> list[tuple[str, str]]:
        """Tokens that a worker took from the queue and has not told RQ of: it is about to, or it has died."""
        found = IntermediateQueue(self.queue(queue).key, self.connection).get_job_ids()
        return [(session, token) for session, _, token in (name.rpartition("-") for name in found)]

    def waiting(self, queues: Iterable[str]) -> dict[str, int]:
        """How many tokens wait in each queue."""
        return {queue: len(self.queue(queue)) for queue in queues}

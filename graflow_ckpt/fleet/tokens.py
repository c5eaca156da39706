"""Tokens: RQ moves them, and that is all it is asked to do.

A token says: session S has work in queue Q. It is an RQ job with two strings, carried as JSON; no
pickle is on the wire. Retries, results, callbacks, dependencies and RQ's own recovery are not used:
whether a token still counts is for the session to say, which refuses a void one in one round trip.
"""

from __future__ import annotations

from collections.abc import Iterable

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

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

    def post_again(self, session: str, token: str, queue: str) -> bool:
        """For a token that nobody has begun on: unless it still waits in its queue."""
        name = job_id(session, token)
        if name in self.queue(queue).job_ids:
            return False
        self.withdraw(session, token)
        self.post(session, token, queue)
        return True

    def withdraw(self, session: str, token: str) -> None:
        """Whatever RQ still knows of a token that is void."""
        try:
            Job.fetch(job_id(session, token), self.connection, serializer=JSONSerializer).delete()
        except NoSuchJobError:
            return

    def waiting(self, queues: Iterable[str]) -> dict[str, int]:
        """How many tokens wait in each queue."""
        return {queue: len(self.queue(queue)) for queue in queues}

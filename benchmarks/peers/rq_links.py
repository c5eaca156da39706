"""The chain of plain RQ. Apart, because a forked RQ worker imports the module of each job anew.

Not here: how a chain is submitted and read (plain_rq.py).
"""

from __future__ import annotations

import time

from rq import Queue, get_current_job


def link(left: int) -> float:
    """One of a chain: `left` more come after it."""
    began = time.monotonic()
    if left:
        job = get_current_job()
        assert job is not None
        Queue(job.origin, connection=job.connection).enqueue(link, left - 1, job_id=name(left - 1))
    return began


def name(left: int) -> str:
    return f"link-{left}"

"""Settings for rq-dashboard, so that it reads our jobs: they are JSON, and it expects pickles.

    pip install rq-dashboard six
    GRAFLOW_CKPT_REDIS_URL=… rq-dashboard --config workers.dashboard --bind 127.0.0.1 --disable-delete

Its own option `--json` covers jobs and queues. The list of workers goes on unpickling the job that a busy one
runs (0.9.0), and is empty for as long as there is one; with this file it reads JSON there too, and unpickles
nothing that it finds in Redis. The address comes from the environment, since `ps` shows `--redis-url`.
"""

from __future__ import annotations

import os
from typing import Any

from rq import Worker
from rq.serializers import JSONSerializer
from rq_dashboard import web  # type: ignore[import-untyped]

for _name in ("GRAFLOW_CKPT_REDIS_URL", "GRAFLOW_CKPT_RQ_URL"):  # the second one wins: it is RQ's own server
    if address := os.environ.get(_name):
        RQ_DASHBOARD_REDIS_URL = address


class JSONWorker(Worker):
    """What the dashboard lists; it never works."""

    @classmethod
    def all(cls, *args: Any, **options: Any) -> list[Any]:  # Any: handed on as it comes
        return super().all(*args, **options | {"serializer": JSONSerializer})


web.config.serializer = JSONSerializer
web.Worker = JSONWorker

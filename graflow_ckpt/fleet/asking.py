"""Asking: calls of the client library on keys of ours. What goes wrong is said in our words, and something
else that is kept under such a key is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graflow_ckpt.core.errors import ServerError
from graflow_ckpt.links.complaints import taken, translated
from graflow_ckpt.links.redis import RedisLink


@contextmanager
def asked(link: RedisLink, **kinds: str) -> Iterator[None]:
    """Around such calls. `kinds`: what each key is to hold, `**{"graflow:sessions": "zset"}`."""
    try:
        with translated(link.address):
            yield
    except ServerError as error:
        if error.ids.get("code") != "WRONGTYPE":
            raise
        with translated(link.address):
            raise taken(link.address, list(kinds), list(kinds.values()), _kind_at(link)) from error


def _kind_at(link: RedisLink) -> Any:  # a call of redis-py, whose types allow a coroutine
    return lambda key: link.client.type(key)

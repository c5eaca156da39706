"""A session in Redis, as its caller sees it: all of its tables, and commits from outside."""

from __future__ import annotations

from collections.abc import Sequence

from graflow_ckpt.core.facts import Claim, Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.ops import Cells
from graflow_ckpt.sessions.protocol import Found
from graflow_ckpt.sessions.redis import RedisSession
from graflow_ckpt.sessions.tables import read_state


class SharedTables:
    """Nothing is held here: each question is a question to Redis."""

    def __init__(self, link: RedisLink, session: str, cells: Cells) -> None:
        self.link = link
        self.sender = RedisSession(link, session, cells)
        self._cells = cells

    @property
    def state(self) -> SessionState:
        """What is known of its tasks, as of now; no values."""
        return read_state(self.link, self.sender.id, self._cells, values=False)

    def commit(self, ops: Sequence[Op]) -> list[Claim]:
        return self.sender.commit(ops)

    def read(self, name: str) -> Found | None:
        return self.sender.read(name)

    def names(self) -> list[str]:
        return self.sender.names()

    def close(self) -> None:
        self.sender.close()

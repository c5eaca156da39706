"""Where the cuts of a shared session go, and what numbers them.

Queue and channel of such a session are in Redis and stay there: its trio holds the control facts,
for verification and for plans, and the program; no values. A *portable* one holds the values, too.
Several workers cut: paths and sequences are numbered in Redis, each trio is one worker's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.model import CheckpointMetadata, now_iso
from graflow_ckpt.checkpoint.program import Program
from graflow_ckpt.checkpoint.snapshot import Snapshot, capture
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import keys_of
from graflow_ckpt.sessions.ops import Cells
from graflow_ckpt.sessions.tables import read_state
from graflow_ckpt.stores import open_store

BACKEND = {"queue": "redis", "channel": "redis"}
POLICY_LOCK = 30_000
"""Milliseconds after which another worker may take a cut that one has begun."""


class SharedHome:
    """The checkpoints of one session in Redis."""

    def __init__(
        self,
        link: RedisLink,
        session: str,
        cells: Cells,
        store: str,
        keyring: Keyring | None,
        program: Program,
    ) -> None:
        self.link = link
        self.session = session
        self._place = store
        self._store: CheckpointStore | None = None
        self.program = program
        self.last: CheckpointMetadata | None = None
        self._cells = cells
        self._keyring = keyring
        self._prefix = keys_of(session)

    @property
    def store(self) -> CheckpointStore:
        """Opened by the first cut."""
        if self._store is None:
            self._store = open_store(self._place)
        return self._store

    @property
    def keyring(self) -> Keyring:
        if self._keyring is None:
            self._keyring = Keyring.for_store(self.store)
        return self._keyring

    @property
    def _client(self) -> Any:  # a redis.Redis of the node that has the session
        return self.link.route.client_for(f"{self._prefix}c")

    def reserve(self, steps: int, metadata: dict[str, Any]) -> CheckpointMetadata:
        """What is known of a checkpoint before it is taken, its path above all."""
        number = int(self._client.hincrby(f"{self._prefix}h", "cuts", 1))
        path = archive.auto_path(self.store, self.session, steps, number)
        return CheckpointMetadata(
            "", self.session, now_iso(), steps, "", dict(BACKEND), metadata, path=path,
            workflow=self.program.workflow, sequence=number, library=archive.library_version(),
        )  # fmt: skip

    def cut(
        self, cause: str, user: dict[str, Any] | None, reserved: CheckpointMetadata | None = None,
        *, path: str | None = None, portable: bool = False,
    ) -> CheckpointMetadata:  # fmt: skip
        """Take the session as it is now and write one trio."""
        state = read_state(self.link, self.session, self._cells, values=portable)
        snapshot = self._snapshot(state, portable)
        if reserved is None:
            reserved = self.reserve(state.steps, user or {})
        metadata = archive.describe(
            snapshot,
            self.program,
            path=path or reserved.path,
            sequence=reserved.sequence,
            cause=cause,
            user=user,
        )
        metadata = replace(metadata, backend=dict(BACKEND), parent=self._parent())
        saved = archive.save(self.store, self.keyring, None, snapshot, self.program, metadata)
        mapping = {"cut": saved.checkpoint_id, "cut_steps": state.steps, "cut_path": saved.path}
        self._client.hset(f"{self._prefix}h", mapping=mapping)
        self.last = saved
        return saved

    def _parent(self) -> str | None:
        found = self._client.hget(f"{self._prefix}h", "cut")
        return found.decode() if found else None

    def _snapshot(self, state: SessionState, portable: bool) -> Snapshot:
        snapshot = capture(state)
        snapshot.facts["backend"] = dict(BACKEND)
        snapshot.facts["redis"] = {"address": self.link.address, "portable": portable}
        if portable:
            return snapshot
        for spec in snapshot.facts["pending_tasks"]:
            if spec["task_data"] is not None:
                spec["task_data"].pop("ref", None)  # it is in the queue, which stays where it is
        return replace(snapshot, values={}, appended={}, data=[], tasks={}, rng=None)

    # --- policies: one worker cuts for all ------------------------------------------------

    def last_cut(self) -> tuple[int, float]:
        """The step of the session's last cut, and how many seconds ago a policy has looked."""
        steps, at = self._client.hmget(f"{self._prefix}h", "cut_steps", "cut_at")
        now = self._now()
        return int(steps or 0), now - float(at or now)

    def may_cut(self) -> bool:
        """Whether this worker is the one that takes a cut that is due."""
        taken = self._client.set(f"{self._prefix}cutting", "1", nx=True, px=POLICY_LOCK)
        return bool(taken)

    def cut_is_over(self) -> None:
        self._client.hset(f"{self._prefix}h", "cut_at", self._now())
        self._client.delete(f"{self._prefix}cutting")

    def _now(self) -> float:
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

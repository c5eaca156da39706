"""SessionState: the control facts and values of a session, as tables and counters.

`apply.py` changes it, one transition at a time. The tables are the same as the Redis keys of a session.

    status    init (being written) -> running -> completed | stopped (max_steps) | stalled
              running -> closing (terminate) -> completed     running -> failing -> failed
              running <-> paused     any but completed -> cancelled, for good
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from graflow_ckpt.core.arguments import whole
from graflow_ckpt.core.facts import JUMP, Cell, TaskSpec

NONE = b"\xc0"
"""The plain value None."""


@dataclass(slots=True, eq=False)
class Gate:
    """The gate at which a join or a group waits.

    It fires once and stays until all have arrived, so that late ones are absorbed.

    need  0   all have to arrive, and one of them done
    need -1   all have to arrive
    need  n   as soon as n of them are done

    `toward` names the tasks that branches jump to from above the gate. If too few others arrive, the
    gate is not passed: the session continues at those tasks.
    """

    size: int
    need: int
    arrived: int = 0
    ok: int = 0
    fired: bool = False
    toward: str = ""

    def jump(self, target: str) -> None:
        """Note where a branch jumps to."""
        if target not in self.toward.split(JUMP):
            self.toward += JUMP + target

    def facts(self) -> list[Any]:
        facts = [self.size, self.need, self.arrived, self.ok, int(self.fired)]
        return [*facts, self.toward] if self.toward else facts


class SessionState:
    """Tables and counters; the same as the Redis keys of a session."""

    def __init__(self, session: str, starts: Sequence[str] = (), max_steps: int | None = None) -> None:
        self.session = session
        self.run = 1  # a finished session that begins again has the next number
        self.starts = tuple(starts)
        self.max_steps = max_steps
        self.cap: int | None = None  # how many claims there may be at once
        self.epoch = 0
        self.sequence = 0  # transitions applied
        self.status = "running"
        self.reason = ""
        self.steps = 0
        self.next_key = 1
        self.next_claim = 1
        self.next_order = 1
        self.specs: dict[int, TaskSpec] = {}
        self.ready: list[tuple[int, int, int]] = []  # (-priority, order, key)
        self.delayed: list[tuple[float, int]] = []  # (due, key)
        self.claimed: dict[int, int] = {}  # key -> number of the claim
        self.dead: dict[int, str] = {}  # key -> error; they run again on resume
        self.retried: dict[str, set[int]] = {}  # task -> keys of its specs that were retried
        self.rounds: dict[int, tuple[str, tuple[str, ...]]] = {}  # key -> where its loops are, their values
        self.gates: dict[str, Gate] = {}
        self.completed: dict[str, int] = {}  # task -> step
        self.skipped: dict[str, int] = {}
        self.passed: dict[str, int] = {}  # groups that are through
        self.errors: dict[str, str] = {}  # task -> its last error
        self.counts: dict[str, int] = {}  # task -> how often it was enqueued
        self.values: dict[str, tuple[Cell, int]] = {}  # name -> cell and version
        self.appended: dict[str, list[Cell]] = {}  # name -> items after the value
        self.tasks: dict[str, Cell] = {}  # tasks made at run time
        self.rng: Cell | None = None
        self.gap: tuple[str, str] | None = None  # what the journal lacks: a value, and why

    def start_at(self, starts: Sequence[str]) -> None:
        """Begin with these tasks; before anything is enqueued."""
        self.starts = tuple(starts)

    def belong_to(self, session: str, epoch: int) -> None:
        """Continue from here as another session, or as another epoch of this one."""
        self.session, self.epoch = session, epoch

    def run_at_once(self, most: int | None) -> None:
        """Have so many claims at once and no more; None: any number."""
        self.cap = most

    def limit_to(self, max_steps: int | None) -> None:
        """Stop after so many steps, unless a `reopen` says otherwise."""
        if max_steps is not None:
            whole("max_steps", max_steps, least=0)
        self.max_steps = max_steps

    def take_random(self) -> bytes | None:
        """Return the random state, once: the process has it from then on, until a commit says it again."""
        taken, self.rng = self.rng, None
        return taken if isinstance(taken, bytes) else None

    @property
    def start_node(self) -> str:
        return self.starts[0] if self.starts else ""

    def pending(self) -> list[TaskSpec]:
        """Return what has still to run, in order: claimed by an attempt, ready, delayed, failed."""
        order = [*sorted(self.claimed, key=self.claimed.__getitem__)]
        order += [key for _, _, key in sorted(self.ready)]
        order += [key for _, key in sorted(self.delayed)]
        order += self.dead
        return [self.specs[key] for key in order]

    def gave_nothing(self, task: str) -> bool:
        """Return True if it was skipped or failed since it last completed; one under retry has not failed."""
        if task in self.skipped:
            return True
        return task in self.errors and not {*self.retried.get(task, ())} - self.dead.keys()

    def waiting_gates(self) -> dict[str, Gate]:
        """Return the joins that some branches have reached and that have not fired."""
        return {name: gate for name, gate in self.gates.items() if not gate.fired}

    # --- changes that several ops have in common -----------------------------------------

    def keep(self, spec: TaskSpec) -> None:
        """Put a spec where it was, or a restored one where it is to be."""
        self.specs[spec.key] = spec
        if spec.retry_count:
            self.retried.setdefault(spec.task_id, set()).add(spec.key)

    def remove(self, key: int) -> TaskSpec:
        """Take a spec out of the session."""
        spec = self.specs.pop(key)
        if self.rounds:
            self.end_rounds(key)
        if spec.retry_count:
            self.not_retried(spec)
        return spec

    def end_rounds(self, key: int) -> None:
        """Forget the loops of a spec that does not run again, and what they have kept."""
        _, names = self.rounds.pop(key, ("", ()))
        for name in names:
            self.values.pop(name, None)
            self.appended.pop(name, None)

    def not_retried(self, spec: TaskSpec) -> None:
        """Remove it from the retries that count."""
        keys = self.retried.get(spec.task_id, set())
        keys.discard(spec.key)
        if not keys:
            self.retried.pop(spec.task_id, None)

    def make_ready(self, spec: TaskSpec) -> None:
        """Queue it behind all others of its priority."""
        heappush(self.ready, (-spec.priority, self.next_order, spec.key))
        self.next_order += 1

    def promote(self, now: float) -> None:
        """Make ready what was delayed and is due."""
        while self.delayed and self.delayed[0][0] <= now:
            key = heappop(self.delayed)[1]
            spec = self.specs[key] = self.specs[key]._replace(not_before=0.0)
            self.make_ready(spec)

    def settle(self) -> None:
        """Set the status when nothing runs: this may be the session's end."""
        if self.status == "closing":
            for key in [k for k in self.specs if k not in self.dead]:
                self.remove(key)
            self.ready.clear()
            self.delayed.clear()
            self.gates.clear()
            self.status = "completed"
        elif self.status == "failing":
            self.status = "failed"
        elif self.status == "running":
            if self.max_steps is not None and self.steps >= self.max_steps and self.specs:
                self.status = "stopped"
                self.reason = f"max_steps={self.max_steps} reached"
            elif not self.specs:
                waiting = self.waiting_gates()
                self.status = "stalled" if waiting else "completed"
                self.reason = f"still waiting: {', '.join(sorted(waiting))}" if waiting else ""

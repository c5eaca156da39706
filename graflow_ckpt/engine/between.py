"""Between two rounds: what the thread that commits does while a body waits, which is in body/rounds.py.

    commit -> the cut that is due, for which what the body has on loan counts as returned -> the answer

If a cut is due and others have values on loan, bodies in rounds wait here for each other: two loops beside
each other would never let one be taken. None waits for a body that is in no loop, nor longer than PATIENCE.
A commit that is refused changes nothing: no cut is taken, and the body keeps what it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from graflow_ckpt.core.decide import round_of
from graflow_ckpt.core.errors import GraphError, TooLarge, WriteConflict
from graflow_ckpt.core.facts import Claim, Left, Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.rounds import Answer, RoundEnd
from graflow_ckpt.engine.invoke import Invoker
from graflow_ckpt.sessions.protocol import Session

if TYPE_CHECKING:
    from graflow_ckpt.engine.run import Cuts, Inbox

log = logging.getLogger("graflow_ckpt.engine")

STOPS = frozenset({"paused", "cancelled", "failing"})
"""The statuses of a session in which bodies leave their loops: where they are is kept."""

PATIENCE = 60.0
"""Seconds for which a body waits between two rounds for others to come to the end of one."""

Commit = Callable[[list[Op], Attempt], list[Claim]]


class Between:
    """The bodies of a run that are between two rounds."""

    def __init__(
        self, graph: TaskGraph, session: Session, invoker: Invoker, inbox: Inbox, cuts: Cuts
    ) -> None:
        self._resting: list[tuple[RoundEnd, Answer]] = []  # they wait, and that is what they will be told
        self._since: float | None = None  # when the first of them began to
        self._graph, self._session, self._invoker = graph, session, invoker
        self._inbox, self._cuts = inbox, cuts
        self._warned = False

    def commit(self, end: RoundEnd, limit: int, commit: Commit) -> tuple[list[Claim], Answer]:
        """Return what is claimed with the commit, and what the body is told."""
        attempt, effects = end.attempt, end.effects
        claim, undo = attempt.claim, list[Callable[[], None]]()
        task, lapsed = claim.spec.task_id, self._invoker.bodies.lapsed
        try:
            for made in effects.spawned:
                undo.append(self._graph.extend(task, made.task, made.before))
            ops = round_of(self._graph, claim, effects, end.where, end.names)
            claims = commit([*ops, ("claim", limit)], attempt)
        except BaseException as error:
            for forget in reversed(undo):
                forget()
            match error:
                case WriteConflict():
                    return [], Answer(leave=Left(error))
                case TooLarge():  # as if the body had raised it
                    return [], Answer(error=error.of(task))
                case GraphError():
                    return [], Answer(error=error)
            raise
        if lapsed:
            lapsed.came_to(claim.spec, end.where)
        stops = self._inbox.stopping or self._session.status in STOPS
        return claims, Answer(self._session.written, leave=Left() if stops else None)

    def cut(self, end: RoundEnd) -> bool:
        """Cut if that is due; return True if nothing may be claimed until a cut is taken."""
        if (live := end.attempt.live) is not None:
            live.rest()
        return self._cuts.after_round(end.effects.request, idle=False)

    def rest(self, end: RoundEnd, answer: Answer) -> None:
        """Let a body wait, until `wake`, and then have this answer."""
        self._resting.append((end, answer))
        self._since = self._since or monotonic()

    def left(self) -> float | None:
        """Return the seconds until bodies that wait are looked at again."""
        return None if self._since is None else max(0.0, self._since + PATIENCE - monotonic())

    def wake(self, holds: bool) -> list[int]:
        """Have them continue, unless a cut waits for others that will come to the end of a round.

        Return the numbers of their claims.
        """
        if not self._resting or (holds and self._waits_for_others()):
            return []
        woken, self._resting, self._since = self._resting, [], None
        for end, answer in woken:
            resume(end, answer)
        return [end.attempt.claim.number for end, _ in woken]

    def _waits_for_others(self) -> bool:
        resting = {id(end.attempt) for end, _ in self._resting}
        awaited = [
            r for r in self._invoker.running.values() if id(r.attempt) not in resting and r.has_loans()
        ]
        late = [one for one in awaited if not one.is_in_rounds()]
        if not late and not self.left():
            late = awaited
        if late:
            self._warn([one.claim.spec.task_id for one in late])
        return bool(awaited) and not late

    def _warn(self, tasks: list[str]) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "a checkpoint is due, and waits for %s, which has values on loan and ends no round",
                ", ".join(sorted({*tasks})),
                extra={"session": self._session.id},
            )


def resume(end: RoundEnd, answer: Answer) -> None:
    """Have a body continue: it has on loan again what it had."""
    if (live := end.attempt.live) is not None and end.attempt.over is None:
        live.work()
    end.answer(answer)

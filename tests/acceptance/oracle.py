"""The oracle: a sequential interpreter of workflows that are plain data.

It says what a workflow comes to: values, results, completed and skipped tasks, steps, cycle counts
and status. It is written from what is promised and imports nothing of graflow_ckpt; it has no threads, no
attempts, no epochs and no disk, so that what it says cannot depend on them.

    spec      a place in the queue: task, cycle, data, and whether it runs, passes or is skipped
    gate      what a join or a group waits with
    cut off   nodes of which every way in comes from a branch that is not taken
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from tests.acceptance.program import Body, Graph, Program, inside, mix

# --- what it comes to ------------------------------------------------------------------


@dataclass(slots=True)
class End:
    """Everything that has to be the same however often the run was interrupted."""

    status: str
    values: dict[str, Any]
    results: dict[str, Any]
    completed: list[str]
    skipped: set[str]
    errors: set[str]
    steps: int
    cycles: dict[str, int]


class Spec(NamedTuple):
    task: str
    how: str  # "run", "pass", "skip", "jump", "lost", "again" (lost, and mended since)
    data: Any
    cycle: int
    tries: int = 0


@dataclass(slots=True)
class Gate:
    size: int
    arrived: int = 0
    ok: int = 0
    fired: bool = False
    need: int | None = None  # of a group that waits again; else as its policy has it
    jumps: list[str] = field(default_factory=list)  # where branches jump to, past it


class TooLong(Exception):
    """The program does more than a test wants to run."""


# --- the interpreter -------------------------------------------------------------------


class Oracle:
    """Interprets one program from its start to its end."""

    def __init__(self, program: Program, limit: int = 60) -> None:
        self.program = program
        self.graph = Graph(program)
        self.bodies = {body.name: body for body in (*program.bodies, *program.made)}
        self.limit = limit
        self.mended = False
        self.rng = random.Random(program.seed)
        self.queue: list[tuple[int, int, Spec]] = []
        self.order = 0
        self.gates: dict[str, Gate] = {}
        self.end = End("running", {}, {}, [], set(), set(), 0, {})
        self.counts: Counter[str] = Counter()
        self.executions = 0
        self.features: Counter[str] = Counter()
        self.failed: Spec | None = None
        self.passed: set[str] = set()  # groups
        self.lost: set[str] = set()  # tasks that failed when they last ran; one that is retried has not

    def run(self) -> End:
        """Until nothing is left to do; what has failed is mended and goes on, as long as that helps."""
        self._enqueue(self.program.start)
        while True:
            before = self.end.steps
            self._drain()
            if self.failed is None:
                break
            spec, self.failed = self.failed, None
            if self.mended and self.end.steps == before:
                self.end.status = "failed"
                break
            self.mended = True
            self.features["paused by a failure, mended, resumed"] += 1
            self._push(spec._replace(tries=0, how="again" if spec.how == "lost" else spec.how))
        if self.end.status == "running":
            waiting = [name for name, gate in self.gates.items() if not gate.fired]
            self.end.status = "stalled" if waiting else "completed"
        self.end.cycles = {task: n - 1 for task, n in self.counts.items() if n > 1 and task in self.bodies}
        self.features[f"status {self.end.status}"] += 1
        return self.end

    def _drain(self) -> None:
        while self.queue and self.failed is None and self.end.status == "running":
            self._take(heappop(self.queue)[2])

    def _take(self, spec: Spec) -> None:
        if spec.how == "run":
            self._run(spec)
        elif spec.how == "again" and self._wait_again(spec.task):
            self.features["a failed group waits again"] += 1
        elif spec.how in ("again", "lost"):
            self.features["group fails: too few members"] += 1
            self._fail(spec._replace(how="lost"))
        elif spec.how == "skip":
            self.features["skipped at a join"] += 1
            self.end.skipped.add(spec.task)
            self._skip(spec.task, set(), failure=False)
        elif spec.how == "jump":
            self.features["all branches of a join jump past it"] += 1
            self.end.skipped.add(spec.task)
            self._goto(spec.task, spec.data)
        else:
            self.features[f"group passes: {self.graph.groups[spec.task].policy}"] += 1
            self.passed.add(spec.task)
            self.end.skipped.discard(spec.task)
            self.lost.discard(spec.task)
            self._send(spec.task)

    def _wait_again(self, failed: str) -> bool:
        """A failed group waits for the members that it has lost; False if too few of them can come.

        What is scheduled already, because the session jumped into the group, is not scheduled twice.
        """
        graph = self.graph
        within = (inside(graph.groups[failed]) | {failed}) - {spec.task for _, _, spec in self.queue}
        if failed not in self.lost & within:
            return True  # a later round has passed it
        through = {*self.end.completed, *self.passed} - self.lost - self.end.skipped
        for name in within & through & graph.groups.keys():  # what it has lost comes too late
            within = within - inside(graph.groups[name])
        tasks = [name for name in self.bodies if name in self.lost & within]
        gates = {}
        for name in self.lost & within & graph.groups.keys():
            missing = [tail for tail in graph.tails[name] if tail not in through]
            coming = sum(any(graph.leads_to(task, tail) for task in tasks) for tail in missing)
            need = graph.groups[name].need - (len(graph.tails[name]) - len(missing))
            if need > coming or not coming:
                return False
            gates[name] = Gate(coming, need=need)
        self.gates.update(gates)
        self.passed -= gates.keys()
        for name in tasks:
            self._enqueue(name)
        return True

    # --- the queue ---------------------------------------------------------------------

    def _push(self, spec: Spec) -> None:
        self.order += 1
        priority = self.bodies[spec.task].priority if spec.task in self.bodies else 0
        heappush(self.queue, (-priority, self.order, spec))

    def _enqueue(self, task: str, data: Any = None, how: str = "run") -> None:
        cycle = self.counts[task]
        if how == "run":
            self.counts[task] += 1
        self._push(Spec(task, "pass" if how == "run" and task in self.graph.groups else how, data, cycle))

    def _waits(self, task: str) -> bool:
        graph = self.graph
        return len(graph.before.get(task, ())) > 1 or task in graph.groups or task in graph.joined

    def _gate(self, task: str) -> Gate:
        return self.gates.setdefault(task, Gate(len(self.graph.before[task])))

    def _arrive(self, task: str, ok: int) -> None:
        if not self._waits(task):
            self._enqueue(task, how="run" if ok else "skip")
            return
        gate = self._gate(task)
        gate.arrived += 1
        gate.ok += ok
        full = gate.arrived >= gate.size
        group = self.graph.groups.get(task)
        policy = group.policy if group else "all"
        need = group.need if group is not None and gate.need is None else gate.need
        enough = policy == "least" and need is not None and gate.ok >= need
        if gate.fired:
            self.features["late arrival absorbed"] += 1
        elif full or enough:
            gate.fired = True
            if gate.jumps and gate.ok < (need or 1 if policy == "least" else 1):
                self._enqueue(task, tuple(gate.jumps), how="jump")
                how = ""
            elif policy == "all":
                how = "run" if gate.ok else "skip"
                self.features["join fires"] += group is None
            else:
                how = "run" if enough or policy == "best" else "lost"
            if how:
                self._enqueue(task, how=how)
        if full:
            del self.gates[task]

    # --- ways onward -------------------------------------------------------------------

    def _send(self, task: str) -> None:
        """Plain completion: successors, then the targets of loop edges."""
        for target in self.graph.forward.get(task, ()):
            self._arrive(target, 1)
        for target in self.graph.loops.get(task, ()):
            self.features["loop edge taken"] += 1
            self._enqueue(target)

    def _skip(self, task: str, stop: set[str], failure: bool) -> set[str]:
        """A branch that is not taken; returns what it cut off."""
        cut = self.graph.cut_off(task, stop, failure)
        self.end.skipped |= cut
        self.features["cut off"] += len(cut)
        for target, ways in self._met(task, cut, stop).items():
            for _ in range(0 if target in cut else ways):
                self.features["skip arrives at a join"] += 1
                self._arrive(target, 0)
        return cut

    def _met(self, task: str, cut: set[str], stop: set[str]) -> dict[str, int]:
        """What a walk down the branch meets, last way first, and by how many ways."""
        met: dict[str, int] = {}
        walk = [task]
        while walk:
            for target in self.graph.forward.get(walk.pop(), ()):
                if target not in stop:
                    met[target] = met.get(target, 0) + 1
                    if target in cut and met[target] == len(self.graph.before[target]):
                        walk.append(target)
        return met

    def _walk_again(self, task: str, targets: Sequence[str]) -> None:
        """What the task leads to runs once for both rounds, so joins there hear twice from other ways.

        Elsewhere a join fires in both rounds, and does not hear again from ways that are not walked again.
        """
        graph = self.graph
        for join in sorted(graph.before):
            below = join != task and graph.leads_to(task, join)
            again = [w for w in graph.before[join] if any(graph.leads_to(t, w) for t in targets)]
            twice = [way for way in again if below and not graph.leads_to(task, way)]
            if twice:
                self.features["join beside a way back"] += 1
                self._gate(join).size += len(twice)
            need = graph.groups[join].need if join in graph.groups else 0
            for number in range(0 if below or not again else len(graph.before[join]) - len(again)):
                self.features["goto back into one branch of a join"] += 1
                self._arrive(join, int(number < need - 1))

    def _goto(self, task: str, targets: Sequence[str]) -> None:
        graph = self.graph
        if all(target in graph.before and graph.leads_to(target, task) for target in targets):
            self._walk_again(task, targets)
            for target in targets:
                self.features["goto back"] += 1
                self._enqueue(target)
            return
        cut = graph.cut_off(task, set(targets), failure=False)
        self.end.skipped |= cut
        self.features["cut off"] += len(cut)
        owed = {n: ways for n, ways in self._met(task, cut, set(targets)).items() if n not in cut}
        runs = [self._go_elsewhere(task, target, cut, owed) for target in targets]
        for name, ways in owed.items():
            for _ in range(ways):
                self.features["skip arrives at a join"] += 1
                self._arrive(name, 0)
        for target, arrivals in zip(targets, runs, strict=True):
            for number in range(arrivals):
                self._arrive(target, int(number == 0))
            if arrivals == 0:
                self._enqueue(target)

    def _go_elsewhere(self, task: str, target: str, cut: set[str], owed: dict[str, int]) -> int:
        """How often the target is arrived at; 0 if it runs at once, -1 if the joins before it decide."""
        graph = self.graph
        ways = graph.before.get(target, [])
        closed = sum(1 for way in ways if way == task or way in cut)
        past = [name for name in owed if not closed and graph.leads_to(name, target)]
        if self._waits(target) and 0 < closed < len(ways):
            self.features["goto joins other branches"] += 1
            return closed
        if past:
            self.features["goto past a join that others feed"] += 1
            for name in past:
                gate = self._gate(name)
                gate.jumps += [] if target in gate.jumps else [target]
            return -1
        if not closed and self._is_live(target) and not graph.leads_to(target, task):
            self.features["goto into another branch"] += 1
            for name, ways_in in self._first_joins(target).items():
                own = min(ways_in, owed.get(name, 0))
                if own:
                    owed[name] -= own
                self._gate(name).size += ways_in - own
        return 0

    def _is_live(self, task: str) -> bool:
        return task in self.graph.before and self.graph.leads_to(self.program.start, task)

    def _first_joins(self, task: str) -> dict[str, int]:
        """The joins that a run of this task arrives at, and how often."""
        met: dict[str, int] = {}
        walk = [task]
        while walk:
            for target in self.graph.forward.get(walk.pop(), ()):
                if self._waits(target):
                    met[target] = met.get(target, 0) + 1
                else:
                    walk.append(target)
        return met

    def _cannot_go(self, task: str, target: str) -> bool:
        """The target is in another branch, before a join that does not wait for this one."""
        graph = self.graph
        if not self._is_live(target) or graph.leads_to(target, task) or task not in graph.before:
            return False
        cut = graph.cut_off(task, {target}, failure=False)
        if any(way == task or way in cut for way in graph.before[target]):
            return False
        owed = [n for n in self._met(task, cut, {target}) if n not in cut]
        if any(graph.leads_to(name, target) for name in owed):
            return False
        return any(not graph.leads_to(task, join) for join in self._first_joins(target))

    # --- one execution -----------------------------------------------------------------

    def _run(self, spec: Spec) -> None:
        body = self.bodies[spec.task]
        self.executions += 1
        if self.executions > self.limit:
            raise TooLong
        if body.max_cycles is not None and spec.cycle >= body.max_cycles:
            self.features["max_cycles exceeded"] += 1
            self._fail(spec)
            return
        asks = body.asks(spec.cycle)
        before = self.rng.getstate()
        written, result = self._interpret(body, spec)
        refused = asks[0] == "goto" and self._cannot_go(spec.task, asks[1])
        self.features["goto into another branch is refused"] += refused
        if (body.broken and not self.mended) or spec.tries < body.flaky or refused:
            self.features["attempt fails"] += 1
            if spec.tries < body.retries:
                self.features["retry"] += 1
                self.end.errors.add(spec.task)
                self._push(spec._replace(tries=spec.tries + 1))
            else:
                self.rng.setstate(before)  # a failure that no retry follows leaves no trace
                self._fail(spec)
            return
        if asks[0] == "cancel":
            self.end.status = "cancelled"
            return
        self.end.values = written
        self._complete(spec.task, result)
        self._onward(spec.task, asks)

    def _complete(self, task: str, result: int) -> None:
        end = self.end
        end.steps += 1
        end.results[task] = result
        if task in end.completed:
            end.completed.remove(task)
        end.completed.append(task)
        end.skipped.discard(task)
        end.errors.discard(task)
        self.lost.discard(task)

    def _onward(self, task: str, asks: tuple[Any, ...]) -> None:
        verb = asks[0]
        if verb == "make":
            self.features["dynamic task" + (" before a successor" if asks[2] else "")] += 1
            if asks[2]:
                self._gate(asks[2]).size += 1
                self.graph.forward[asks[1]] = [asks[2]]
                self.graph.joined.add(asks[2])
        if verb == "again":
            self.features["next_iteration with data"] += 1
            self._enqueue(task, asks[1])
        elif verb == "goto":
            self._goto(task, [asks[1]])
        elif verb == "make goto":
            self.features["dynamic task instead of the successors"] += 1
            self._skip(task, set(), failure=False)
            self._enqueue(asks[1])
        else:
            self._send(task)
        if verb == "also":
            self.features["next_task with data"] += 1
            self._enqueue(asks[1], asks[2])
        elif verb == "make":
            self._enqueue(asks[1])
        elif verb == "terminate":
            self.features["terminate with work left"] += bool(self.queue)
            self.queue.clear()
            self.gates.clear()
            self.end.status = "completed"

    def _fail(self, spec: Spec) -> None:
        self.end.errors.add(spec.task)
        self.lost.add(spec.task)
        self.passed.discard(spec.task)
        if spec.task in self.graph.lenient or self.program.on_failure == "continue":
            self.features["lost, the session goes on"] += 1
            self._skip(spec.task, set(), failure=True)
        else:
            self.failed = spec

    def _interpret(self, body: Body, spec: Spec) -> tuple[dict[str, Any], int]:
        """The values after the body, and what it returns."""
        values = {n: list(v) if isinstance(v, list) else v for n, v in self.end.values.items()}
        seen: list[Any] = [body.constant, spec.cycle, spec.data]
        seen += [self._read(name) for name in body.reads]
        for kind, name, number in body.ops:
            self.features[f"op {kind}"] += 1
            if kind == "set":
                values[name] = mix(number, *seen)
            elif kind == "add":
                values[name] = values.get(name, 0) + number
            elif kind in ("append", "mutate", "live"):
                values[name] = [*values.get(name, []), mix(number, spec.cycle)]
            elif kind == "random":
                values[name] = self.rng.random()
            elif kind == "read":
                seen.append(values.get(name))
        return values, mix(*seen)

    def _read(self, name: str) -> Any:
        if name in self.graph.groups:
            return {m: self.end.results[m] for m in self.graph.tails[name] if self._has_result(m)}
        return self.end.results[name] if self._has_result(name) else None

    def _has_result(self, task: str) -> bool:
        """A predecessor that was skipped or has failed gives none, whatever it gave before."""
        return task in self.end.results and task not in self.end.skipped | self.lost

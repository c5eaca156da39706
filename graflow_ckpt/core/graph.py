"""The task graph: nodes, edges, and what completing each node sends onward.

`compile(start)` sorts the edges once: an edge that closes a cycle, in order of declaration
from the start, is a loop edge; all others are forward edges and feed the joins. The result is
a `Route` per node with its ops ready made, so that a plain completion costs no thought.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from graflow_ckpt.core.errors import GraphError, UnknownTask
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.task import Group, Options, Task

Node = Task | Group


class Copies(dict[str, Any]):
    """Names such as `resize[17]` stand for the node of their first part."""

    last: tuple[str, Any] = ("", None)  # the same name is asked for several times in a row

    def __missing__(self, name: str) -> Any:
        if name == self.last[0]:
            return self.last[1]
        family, bracket, _ = name.partition("[")
        if not bracket or family not in self:
            raise KeyError(name)
        self.last = (name, self[family])
        return self.last[1]


def reached(names: Iterable[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """Return these nodes, and all that `onward` leads to from them."""
    seen: set[str] = set()
    work = [*names]
    while work:
        name = work.pop()
        if name not in seen:
            seen.add(name)
            work.extend(onward(name))
    return seen


class Route:
    """The edges of a node: where it leads, and what it waits for."""

    __slots__ = (
        "done", "forward", "indegree", "lenient", "loops", "name", "node", "options", "preds", "waits",
        "ways",
    )  # fmt: skip

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name = node.name
        self.options = node.options if isinstance(node, Task) else GROUP_OPTIONS
        self.forward: tuple[str, ...] = ()
        self.loops: tuple[str, ...] = ()
        self.preds: tuple[str, ...] = ()  # as declared; of a task made at run time: its maker
        self.ways = 0  # forward edges that count, those of tasks made at run time included
        self.indegree = 0  # forward edges that count for its gate
        self.waits = False  # has a gate
        self.lenient = False  # is in a group that can do without it
        self.done: tuple[Op, ...] = ()  # what a plain completion sends

    def enqueue(self) -> Op:
        """Return the op of a new spec of this node."""
        o = self.options
        return ("enqueue", self.name, None, o.priority, o.max_retries, o.queue, self.how)

    def arrive(self, ok: int) -> Op:
        """Return the op that says that one in-edge of this node is through."""
        o = self.options
        return (
            "arrive", self.name, ok, self.indegree, self.need, o.priority, o.max_retries, o.queue, self.how,
        )  # fmt: skip

    @property
    def how(self) -> str:
        return "direct" if isinstance(self.node, Task) else "pass"

    @property
    def need(self) -> int:
        """The number of successes that the gate needs: see `state._arrive`."""
        return self.node.policy.need(self.indegree) if isinstance(self.node, Group) else 0


GROUP_OPTIONS = Options()


class TaskGraph:
    """Nodes and edges in order of declaration."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.successors: dict[str, list[str]] = {}
        self.routes: dict[str, Route] = {}
        self.live: set[str] = set()  # what the start leads to
        self.looped: dict[str, tuple[str, ...]] = {}  # source -> targets of loop edges
        self.starts: tuple[str, ...] = ()
        self.made: set[str] = set()  # tasks made at run time

    # --- declaring ---------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Add a node; the same node twice is one, another one of that name is refused."""
        known = self.nodes.get(node.name)
        if known is not None and known is not node:
            raise GraphError(
                f"Two different tasks are called {node.name!r}.",
                hint="Give one of them another id: @task(id=...), or task.bind(id=...).",
                task=node.name,
            )
        self.nodes[node.name] = node
        self.successors.setdefault(node.name, [])

    def add_edge(self, source: str, target: str) -> None:
        """Add an edge: `target` follows `source`."""
        if source not in self.nodes or target not in self.nodes:
            self.get_node(source), self.get_node(target)  # which say what there is
        onward = self.successors[source]
        if target not in onward:
            onward.append(target)

    def get_node(self, name: str) -> Node:
        """Return the node of that name."""
        try:
            return self.nodes[name]
        except KeyError:
            raise UnknownTask(
                f"The graph has no task {name!r}.",
                hint=f"It has: {', '.join(self.task_names()) or 'none'}.",
                task=name,
            ) from None

    def task_names(self) -> list[str]:
        """Return the names of the tasks that have a body."""
        return [name for name, node in self.nodes.items() if isinstance(node, Task)]

    def roots(self) -> list[str]:
        """Return the nodes that nothing else leads to."""
        led_to = {target for source, target in self.edges() if source != target}
        return [name for name in self.nodes if name not in led_to]

    def edges(self) -> Iterator[tuple[str, str]]:
        for source, targets in self.successors.items():
            for target in targets:
                yield source, target

    # --- compiling ---------------------------------------------------------------------

    def compile(self, starts: Iterable[str]) -> None:
        """Sort the edges as seen from the starts and prepare a route per node."""
        for name in self.made:
            del self.nodes[name], self.successors[name]
        self.made.clear()
        self.starts = tuple(dict.fromkeys(chain.from_iterable(map(self._entered_at, starts))))
        loops, self.live = self._sort_edges()
        self.looped = {}
        self._refuse_two_entries(loops)
        self.routes = {name: Route(node) for name, node in self.nodes.items()}
        preds = defaultdict[str, list[str]](list)
        for source, targets in self.successors.items():
            route = self.routes[source]
            route.forward = forward = tuple(targets)
            if loops and any((source, t) in loops for t in targets):
                route.loops = self.looped[source] = tuple(t for t in targets if (source, t) in loops)
                route.forward = forward = tuple(t for t in targets if (source, t) not in loops)
            for target in forward:
                preds[target].append(source)
        everywhere = len(self.live) == len(self.nodes)
        for name, before in preds.items():
            route = self.routes[name]
            route.preds = tuple(before)
            route.ways = route.indegree = (
                len(before) if everywhere else sum(self._counts(p, name) for p in before)
            )
            route.waits = route.indegree > 1
        self._mark_groups()
        same: dict[tuple[str, ...], tuple[Op, ...]] = {}  # where every edge counts, all send a node the same
        for name, route in self.routes.items():
            if not everywhere or route.loops:
                self._prepare(name)
            elif (done := same.get(route.forward)) is not None:
                route.done = done
            else:
                self._prepare(name)
                same[route.forward] = route.done

    def _entered_at(self, name: str) -> list[str]:
        """Return the nodes that a start at this one runs first: of a group, what its members begin with."""
        group = self.get_node(name)
        if isinstance(group, Task):
            return [name]
        inner = {
            n for n, node in self.nodes.items() if isinstance(node, Group) and node.inside < group.inside
        }
        inside = group.inside | inner
        led_to = {target for source in inside for target in self.successors[source] if source != target}
        outside = {target for source, target in self.edges() if source not in inside}
        tasks = [n for n in self.nodes if n in group.inside]
        heads: list[str] = []
        seen: set[str] = set()
        # a member that is a cycle has no first task by its edges: it is entered from outside, or in order
        for choice in (lambda n: n not in led_to, lambda n: n in outside, lambda n: True):
            for head in filter(choice, tasks):
                if head not in seen:
                    heads.append(head)
                    seen.update(reached([head], lambda n: inside.intersection(self.successors[n]) - seen))
        return heads

    def as_bag(self) -> TaskGraph:
        """Make each task stand for any number of copies of it: `resize[0]`, `resize[1]` …"""
        self.nodes, self.routes = Copies(self.nodes), Copies(self.routes)
        return self

    def _mark_groups(self) -> None:
        """Give groups a gate; mark the nodes of those that can do without members, groups inside included."""
        groups = [(r, r.node.inside) for r in self.routes.values() if not isinstance(r.node, Task)]
        for route, inside in groups:
            route.waits = True
            if route.need != 0:
                for member in inside:
                    self.routes[member].lenient = True
                for other, tasks in groups:
                    other.lenient |= tasks < inside

    def extend(self, spawner: str, task: Task, before: tuple[str, ...]) -> Callable[[], None]:
        """Add a task made at run time to a compiled graph, before `before`; return what undoes that."""
        if task.name in self.routes:
            route = self.routes[task.name]  # made again by a loop
            undo = partial(self._replace, route, route.node, route.options)
            self._replace(route, task, task.options)
            return undo
        self.made.add(task.name)
        self.nodes[task.name] = task
        self.successors[task.name] = list(before)
        route = self.routes[task.name] = Route(task)
        route.preds = (spawner,)
        route.forward = before
        self.live.add(task.name)
        route.ways = int(self._counts(spawner, task.name))
        for name in before:
            self.gate(name)
            self.routes[name].ways += 1
        self._prepare(task.name)
        return partial(self._remove, route)

    def _replace(self, route: Route, node: Node, options: Options) -> None:
        self.nodes[route.name] = route.node = node
        route.options = options

    def _remove(self, route: Route) -> None:
        for names in (self.nodes, self.successors, self.routes):
            del names[route.name]
        self.made.discard(route.name)
        self.live.discard(route.name)
        for target in route.forward:  # which keeps its gate: one arrival passes it
            self.routes[target].ways -= 1

    def edges_from(self, sources: set[str], target: Route) -> int:
        """Count the forward edges from these to the target; the maker of a task leads to it, too."""
        if target.name in self.made:
            return sum(pred in sources for pred in target.preds)
        return sum(self.routes[source].forward.count(target.name) for source in sources)

    def _counts(self, source: str, target: str) -> bool:
        """Return True if the edge counts: one from a node that never runs holds up no node that does."""
        return source in self.live or target not in self.live

    def _prepare(self, name: str) -> None:
        route = self.routes[name]
        onward = [self.edge(name, target) for target in route.forward]
        if route.loops:
            onward += [self.routes[target].enqueue() for target in route.loops]
        route.done = tuple(onward)

    def gate(self, name: str) -> None:
        """Gate this node: whatever leads to it arrives at its gate from now on."""
        route = self.routes[name]
        if route.waits and route.indegree:
            return  # they do already; a join of many made at run time is asked for each of them
        route.waits = True
        route.indegree = max(1, route.indegree)
        for pred in route.preds:
            self._prepare(pred)

    def edge(self, source: str, target: str) -> Op:
        """Return what `source` sends along its edge to `target` when it has completed."""
        successor = self.routes[target]
        if successor.waits and self._counts(source, target):
            return successor.arrive(1)
        return successor.enqueue()

    def not_taken(self, route: Route, stop: frozenset[str], groups: bool) -> tuple[set[str], list[Op]]:
        """Return the nodes that are cut off when `route` does not lead on, and the ops for their joins."""
        cut, partly = self.cut_off(route, stop, groups)
        return set(cut), [*(("skipped", target) for target in cut), *self.missed(partly)]

    def missed(self, partly: dict[str, int]) -> list[Op]:
        """Return the ops for joins of branches that do not arrive."""
        return [self.routes[target].arrive(0) for target, count in partly.items() for _ in range(count)]

    def sent_by(self, name: str) -> dict[str, int]:
        """Return what one run of a node sends to the joins that it leads to first."""
        sent: dict[str, int] = {}
        work = [name]
        while work:
            source = work.pop()
            for target in self.routes[source].forward:
                if not self.routes[target].waits:
                    work.append(target)
                elif self._counts(source, target):
                    sent[target] = sent.get(target, 0) + 1
        return sent

    def walked_again(self, route: Route, targets: frozenset[str]) -> list[Op]:
        """Return the ops for joins when `route` goes back up to `targets` instead of leading on.

        What `route` leads to runs once, for this round and the next: its joins will get two arrivals from
        ways in that are walked again beside it. Other joins fire in each round: their ways in that are not
        walked again have come before and count; of a group at least one that is has to succeed once more.
        """
        again, below = self._led_to(targets), self._led_to((route.name,))
        ops: list[Op] = []
        for name in sorted(again):
            join = self.routes[name]
            ways = {p for p in join.preds if self._counts(p, name) and p not in self.made}
            fed, more = len(ways & again), len((ways & again) - below)
            if name == route.name or name not in below:
                ops += [join.arrive(int(n < join.need - 1)) for n in range(len(ways) - fed) if fed]
            elif more:
                ops.append(("expect", name, more, join.indegree, join.need))
        return ops

    def _led_to(self, names: Iterable[str]) -> set[str]:
        """Return these nodes, and all that forward edges lead to from them."""
        return reached(names, lambda name: self.routes[name].forward)

    def cut_off(self, route: Route, stop: frozenset[str], groups: bool) -> tuple[list[str], dict[str, int]]:
        """Return the nodes all of whose edges are cut, and those of which some are, with how many.

        Nothing is cut into `stop`. A group that can do without members is cut off itself only if
        `groups`: a failure inside it is for its gate to judge.
        """
        cut: set[str] = set()
        edges: dict[str, int] = {}
        work = [route.name]
        while work:
            source = work.pop()
            for target in self.routes[source].forward:
                if target in stop or not self._counts(source, target):
                    continue
                edges[target] = edges.get(target, 0) + 1
                successor = self.routes[target]
                if edges[target] == successor.ways and (groups or not isinstance(successor.node, Group)):
                    cut.add(target)
                    work.append(target)
        return [t for t in edges if t in cut], {t: n for t, n in edges.items() if t not in cut}

    # --- cycles ------------------------------------------------------------------------

    def _sort_edges(self) -> tuple[set[tuple[str, str]], set[str]]:
        """Sort the edges depth first from the starts, then from what is left: edges back up are loops."""
        loops: set[tuple[str, str]] = set()
        done: set[str] = set()
        on_path: set[str] = set()
        live: set[str] | None = None
        order = [*self.starts, None, *self.nodes]
        for root in order:
            if root is None:
                live = set(done)
                continue
            if root in done:
                continue
            if done.issuperset(self.successors[root]):
                done.add(root)
                continue
            stack = [(root, iter(self.successors[root]))]
            on_path.add(root)
            while stack:
                name, targets = stack[-1]
                for target in targets:
                    if target in on_path:
                        loops.add((name, target))
                    elif target not in done:
                        on_path.add(target)
                        stack.append((target, iter(self.successors[target])))
                        break
                else:
                    stack.pop()
                    on_path.discard(name)
                    done.add(name)
        return loops, live or set()

    def _refuse_two_entries(self, loops: set[tuple[str, str]]) -> None:
        """Refuse a way from the starts into a loop that does not pass the task that the loop goes back to."""
        for source, target in sorted(loops):
            if source not in self.live or source == target:
                continue
            if source in self._beside(target):
                raise GraphError(
                    f"The cycle through {target!r} and {source!r} has two entries.",
                    hint=f"Let every way into it lead through {target!r}.",
                    source=source,
                    target=target,
                )

    def _beside(self, target: str) -> set[str]:
        """Return what the starts lead to without passing `target`."""
        others = self.nodes.keys() - {target}
        return reached(others & {*self.starts}, lambda name: others & {*self.successors[name]})

    def is_ancestor(self, name: str, of: str) -> bool:
        """Return True if forward edges lead from `name` to `of`."""
        return of in self._led_to((name,))

"""Expressions: `a >> b` and `a | b`.

Values that remember what was joined to what. The workflow in whose block they are made collects
them; a part that ends up in a larger expression counts only there. Elsewhere they are passed to
`workflow.add(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakValueDictionary

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, AtLeast, BestEffort, Group, GroupPolicy, Task
from graflow_ckpt.frontends.door import fleet

if TYPE_CHECKING:  # the fleet needs packages that are optional
    from graflow_ckpt.engine.settings import OnFinished
    from graflow_ckpt.fleet.client import Where
    from graflow_ckpt.fleet.handle import Handle

Expression = Any  # DecoratedTask | Chain | Parallel; Joined says what they share


class Collector(Protocol):
    """The workflow whose block is open."""

    def collect(self, expression: Chain | Parallel, parts: tuple[Expression, ...]) -> None: ...


collector: ContextVar[Collector | None] = ContextVar("graflow_workflow", default=None)


class Joined:
    """The operators that tasks, chains and groups have in common."""

    __slots__ = ()

    def __rshift__(self, other: Any) -> Chain:
        """Make a chain: first this, then `other`."""
        return Chain((self, _operand(other, ">>")))

    def __rrshift__(self, other: Any) -> Chain:
        return Chain((_operand(other, ">>"), self))

    def __or__(self, other: Any) -> Parallel:
        """Make a group: this and `other` at the same time."""
        return Parallel((self, _operand(other, "|")))

    def __ror__(self, other: Any) -> Parallel:
        return Parallel((_operand(other, "|"), self))


class DecoratedTask(Task, Joined):
    """The result of `@task`: a task that can be called like the function it was, and joined."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body directly, as if it had never been decorated."""
        return self.func(*args, **kwargs)

    def bind(self, *, id: str | None = None, **given: Any) -> DecoratedTask:  # noqa: A002
        """Return the same body as another task, with some of its arguments given."""
        name = self.name if id is None else arguments.text("id", id)
        bound = DecoratedTask(name, self.func, self.options, {**self.arguments, **given})
        registered(bound)
        return bound

    # --- on a fleet: see fleet/client.py -----------------------------------------------------

    def submit(
        self,
        *args: Any,
        url: Where = None,
        priority: int | None = None,
        delay: float | None = None,
        key: str | None = None,
        existing: OnFinished | None = None,
        ttl: float | None = None,
        value_limit: int | None = None,
        **kwargs: Any,
    ) -> Handle:
        """Submit one call of the body to a fleet. The same `key` is the same execution: refused, or with
        `existing` returned or run again. A body that has a parameter of one of these names: `submit_call`."""
        options: dict[str, Any] = {
            "url": url, "priority": priority, "delay": delay, "key": key, "existing": existing,
            "ttl": ttl, "value_limit": value_limit,
        }  # fmt: skip
        door = fleet()
        door.refuse_clash(self, args, options)
        return cast("Handle", door.submit_call(self, args, kwargs, **options))

    def submit_call(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({}), **options: Any
    ) -> Handle:
        """Submit one call with the arguments apart; `options` are those of `submit`, from `url` on."""
        return cast(
            "Handle", fleet().submit_call(self, args, kwargs, **{"url": None, "key": None, **options})
        )

    def submit_many(self, calls: Iterable[Any], **options: Any) -> Handle:
        """Submit many calls as one session: each item is an argument, a tuple of them, or a dict by name. A
        dict that is an argument goes into a tuple: `({"a": 1},)`. Options are those of `submit`."""
        return cast("Handle", fleet().submit_calls(self, calls, **{"url": None, "key": None, **options}))

    @property
    def id(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Chain(Joined):
    """Parts one after the other."""

    __slots__ = ("_joined",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._joined: tuple[Expression, ...] = parts
        _collect(self, parts)

    @property
    def parts(self) -> tuple[Expression, ...]:
        """Without chains among them. Found out when asked for: each `>>` of a long chain makes a chain."""
        flat: list[Expression] = []
        pending = [*self._joined]
        while pending:
            part = pending.pop()
            if isinstance(part, Chain):
                pending += part._joined
            else:
                flat.append(part)
        self._joined = tuple(reversed(flat))
        return self._joined

    def __repr__(self) -> str:
        return " >> ".join(map(repr, self.parts))


class Parallel(Joined):
    """Members at the same time, joined under a policy."""

    __slots__ = ("members", "name", "policy")
    members: tuple[Expression, ...]
    policy: GroupPolicy | None
    name: str | None

    def __init__(
        self, members: tuple[Any, ...], policy: GroupPolicy | None = None, name: str | None = None
    ) -> None:
        flat: list[Expression] = []
        for member in members:
            plain = isinstance(member, Parallel) and member.policy is None and member.name is None
            flat += member.members if plain else (member,)
        self.members = tuple(flat)
        self.policy = policy
        self.name = name if name is None else arguments.text("name", name)
        _collect(self, members)

    def with_policy(self, policy: GroupPolicy, name: str | None = None) -> Parallel:
        """Return the same members under All(), BestEffort() or AtLeast(n)."""
        changed = Parallel(self.members, policy, name or self.name)
        _collect(changed, (self,))
        return changed

    def best_effort(self) -> Parallel:
        return self.with_policy(BestEffort())

    def at_least(self, count: int) -> Parallel:
        return self.with_policy(AtLeast(count))

    def named(self, name: str) -> Parallel:
        return self.with_policy(self.policy or All(), name)

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.members))})"


def group(*members: Any, policy: GroupPolicy | None = None, name: str | None = None) -> Parallel:
    """Return a group of members that run at the same time: `group(a, b >> c, policy=AtLeast(1))`."""
    if not members:
        raise GraphError("A group needs members.")
    if policy is not None:
        arguments.kind("policy", policy, (All, BestEffort, AtLeast), "a policy of groups such as AtLeast(1)")
    return Parallel(tuple(_operand(m, "group") for m in members), policy, name)


# --- making a graph of them ------------------------------------------------------------


def add_to(graph: TaskGraph, expression: Expression) -> tuple[list[str], list[str]]:
    """Add an expression's nodes and edges; its heads and its tails."""
    if isinstance(expression, Task):
        graph.add(expression)
        return [expression.name], [expression.name]
    if isinstance(expression, Chain):
        heads: list[str] = []
        tails: list[str] = []
        for part in expression.parts:
            first, last = add_to(graph, part)
            for source in tails:
                for target in first:
                    graph.add_edge(source, target)
            heads = heads or first
            tails = last
        return heads, tails
    return _add_group(graph, expression)


def _add_group(graph: TaskGraph, expression: Parallel) -> tuple[list[str], list[str]]:
    heads: list[str] = []
    tails: list[str] = []
    inside: set[str] = set()
    for member in expression.members:
        if isinstance(member, Task):
            graph.add(member)
            heads.append(member.name)
            tails.append(member.name)
            inside.add(member.name)
            continue
        first, last = add_to(graph, member)
        heads += first
        tails += last
        inside.update(_tasks_of(member))
    policy = expression.policy or All()
    policy.need(len(set(tails)))  # refuses a policy that can never be met
    what = (policy, tuple(dict.fromkeys(tails)), frozenset(inside))
    name = expression.name or _free_name(graph, what)
    if not _is_group(graph, name, what):  # the same group in two expressions is one node
        graph.add(Group(name, *what))
        for tail in tails:
            graph.add_edge(tail, name)
    return heads, [name]


What = tuple[GroupPolicy, tuple[str, ...], frozenset[str]]


def _free_name(graph: TaskGraph, what: What) -> str:
    """Return a free name, by order of declaration: a program that is started again has the same names."""
    number = 1
    while f"group_{number}" in graph.nodes and not _is_group(graph, f"group_{number}", what):
        number += 1
    return f"group_{number}"


def _is_group(graph: TaskGraph, name: str, what: What) -> bool:
    node = graph.nodes.get(name)
    return isinstance(node, Group) and (node.policy, node.members, node.inside) == what


def _tasks_of(expression: Expression) -> Collection[str]:
    if isinstance(expression, Task):
        return (expression.name,)
    parts = expression.parts if isinstance(expression, Chain) else expression.members
    return set().union(*map(_tasks_of, parts))


# --- collectors ------------------------------------------------------------------------

_known: WeakValueDictionary[int, DecoratedTask] = WeakValueDictionary()
_numbers = count()


def registered(made: DecoratedTask) -> DecoratedTask:
    """Remember a task as long as it is referenced: one made in every round of a loop must not stay."""
    _known[next(_numbers)] = made
    return made


def called(name: str) -> list[DecoratedTask]:
    """Return the tasks of that name, wherever they were decorated, oldest first."""
    return [task for task in list(_known.values()) if task.name == name]


def _collect(expression: Chain | Parallel, parts: tuple[Expression, ...]) -> None:
    current = collector.get()
    if current is not None:
        current.collect(expression, parts)


def _operand(value: Any, operator: str) -> Expression:
    if isinstance(value, Joined):
        return value
    if isinstance(value, (list, tuple)) and value:
        return Parallel(tuple(_operand(v, operator) for v in value))
    raise GraphError(
        f"{operator} joins tasks, chains and groups, not {type(value).__name__}.",
        hint="Decorate the function with @task.",
    )


Decorator = Callable[[Callable[..., Any]], DecoratedTask]

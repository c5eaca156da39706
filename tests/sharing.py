"""Programs whose values share objects, and how they are run: see acceptance/test_sharing.py.

A program is a list of rounds, one commit each. What it has come to is a picture: all values at once,
with a number for each object, so that two pictures are equal if values and wiring are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from graflow_ckpt import ExecutionContext, Workflow, task, workflow

Round = Callable[[Any], None]  # what it gets is a channel
ROUNDS = 10


class Killed(BaseException):
    """The process has died here."""


class Node:
    """Anything with a state that others point to."""

    def __init__(self, value: float = 0.0, *edges: Any) -> None:
        self.value = value
        self.edges = list(edges)


class SGD:
    """With momentum; a parameter is a node that the model has, too."""

    def __init__(self, params: Sequence[Node]) -> None:
        self.params = list(params)
        self.momentum = [0.0 for _ in self.params]

    def step(self) -> None:
        for number, param in enumerate(self.params):
            self.momentum[number] = 0.9 * self.momentum[number] + math.sin(param.value + number)
            param.value -= 0.1 * self.momentum[number]


class Adam(SGD):
    """Keeps its state by parameter."""

    def __init__(self, params: Sequence[Node]) -> None:
        super().__init__(params)
        self.state = {param: [0.0, 0.0] for param in self.params}

    def step(self) -> None:
        for param, moments in self.state.items():
            slope = math.cos(param.value)
            moments[0] = 0.9 * moments[0] + 0.1 * slope
            moments[1] = 0.99 * moments[1] + 0.01 * slope * slope
            param.value -= 0.1 * moments[0] / (math.sqrt(moments[1]) + 1e-8)


class Average:
    """An average of a model's parameters, in a copy of it."""

    def __init__(self, model: Node) -> None:
        self.model = model
        self.copy = copy.deepcopy(model)

    def update(self) -> None:
        for kept, param in zip(self.copy.edges, self.model.edges, strict=True):
            kept.value = 0.9 * kept.value + 0.1 * param.value


def model(layers: int = 3) -> Node:
    return Node(0.0, *(Node(1.0 + number) for number in range(layers)))


def picture(values: dict[str, Any]) -> list[Any]:
    """Values and wiring."""
    numbers: dict[int, int] = {}
    kept: list[Any] = []

    def of(value: Any) -> Any:
        if isinstance(value, int | float | str | None):
            return repr(value)
        if isinstance(value, bytes):
            return len(value)
        if id(value) in numbers:
            return numbers[id(value)]
        kept.append(value)
        numbers[id(value)] = len(numbers)
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(of, value)]
        if isinstance(value, dict):
            return [[of(key), of(item)] for key, item in value.items()]
        if hasattr(value, "tolist"):
            return ["array", value.tobytes().hex()]
        return [type(value).__name__, of(vars(value))]

    return [[name, of(values[name])] for name in sorted(values)]


# --- programs --------------------------------------------------------------------------


def _step(channel: Any) -> None:
    channel.get("opt").step()


def _beginning(optimizer: Callable[[Sequence[Node]], SGD] = SGD, **more: Callable[[Node], Any]) -> Round:
    """Sets a model, its optimizer, and what is made of the model under other names."""

    def begin(channel: Any) -> None:
        made = model()
        channel.set("model", made)
        channel.set("opt", optimizer(made.edges))
        for name, make in more.items():
            channel.set(name, make(made))

    return begin


def _first_grows(channel: Any) -> None:
    channel.get("model").edges[0].value += 1.0


def _training(optimizer: Callable[[Sequence[Node]], SGD]) -> list[Round]:
    def both(channel: Any) -> None:
        made = channel.get("model")
        channel.get("opt").step()
        made.value += sum(param.value for param in made.edges)

    return [_beginning(optimizer), *[_step, both] * (ROUNDS // 2)]


def _ema() -> list[Round]:
    def update(channel: Any) -> None:
        channel.get("ema").update()

    return [_beginning(ema=Average), *[_step, update] * (ROUNDS // 2)]


def _tied() -> list[Round]:
    def begin(channel: Any) -> None:
        made = model(2)
        made.edges.append(made.edges[0])  # the weights of the first layer are those of the last one
        channel.set("model", made)
        channel.set("opt", SGD(made.edges[:2]))

    def third(channel: Any) -> None:
        channel.set("layer", channel.get("model").edges[2])

    def layer(channel: Any) -> None:
        channel.get("layer").value *= 0.5

    return [begin, _step, third, *[_step, layer] * 4]


def _array() -> list[Round]:
    import numpy

    def begin(channel: Any) -> None:
        data = numpy.arange(20_000.0)  # outside of the frames of a pickle
        channel.set("data", data)
        channel.set("train", {"of": data, "rows": [0, 1]})
        channel.set("test", {"of": data, "rows": [2, 3]})

    def scale(channel: Any) -> None:
        channel.get("data")[:] *= 1.5

    def shift(channel: Any) -> None:
        part = channel.get("train")
        part["of"][part["rows"]] += 1.0

    return [begin, *[scale, shift] * (ROUNDS // 2)]


def _cycle() -> list[Round]:
    def begin(channel: Any) -> None:
        a, b = Node(1.0), Node(2.0)
        a.edges.append(b)
        b.edges.append(a)
        channel.set("a", a)
        channel.set("b", b)

    def turn(channel: Any) -> None:
        channel.get("a").edges[0].value += 1.0

    def back(channel: Any) -> None:
        channel.get("b").edges[0].value *= 2.0

    return [begin, *[turn, back] * 4]


def _made_later() -> list[Round]:
    def begin(channel: Any) -> None:
        channel.set("other", Node(7.0))
        channel.set("model", model())

    def make(channel: Any) -> None:
        channel.set("opt", SGD(channel.get("model").edges))

    return [begin, make, *[_step] * ROUNDS]


def _appended() -> list[Round]:
    def begin(channel: Any) -> None:
        channel.set("model", model())
        channel.append("history", Node(-1.0))

    def keep(channel: Any) -> None:
        made = channel.get("model")
        made.value += 1.0
        channel.append("history", made)

    def alone(channel: Any) -> None:
        channel.append("history", Node(3.0))
        channel.append("history", Node(4.0))

    def change(channel: Any) -> None:
        channel.get("history")[-3].value *= 2.0

    return [begin, keep, _first_grows, alone, keep, _first_grows, alone, change, _first_grows]


def _none_and_back() -> list[Round]:
    def none(channel: Any) -> None:
        channel.get("model").edges[0].value += 5.0  # seen under the other names, though this one goes
        channel.set("model", None)

    def back(channel: Any) -> None:
        channel.set("model", Node(0.0, *channel.get("opt").params))

    begin = _beginning(params=lambda made: made.edges)
    return [begin, _step, none, _step, back, _step, none, _step, back, _step]


def _replaced() -> list[Round]:
    def apart(channel: Any) -> None:
        channel.set("model", model())

    def again(channel: Any) -> None:
        channel.set("opt", SGD(channel.get("model").edges))

    turns = [_step, apart, _step, _first_grows, _step, again, _step, _first_grows, _step]
    return [_beginning(), *turns]


class Fickle:
    """Its state is made when it is asked for: nothing of it can be shared."""

    def __init__(self) -> None:
        self.count = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count, "made": [[self.count], {"a": [1]}]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def _fickle() -> list[Round]:
    def begin(channel: Any) -> None:
        for name in "abcd":
            channel.set(name, Fickle())
        channel.set("e", Node(1.0))

    def count(channel: Any) -> None:
        for name in "abc":
            channel.get(name).count += 1
        channel.get("e").value += 1.0

    def share(channel: Any) -> None:
        channel.get("e").edges.append(channel.get("d"))

    def last(channel: Any) -> None:
        channel.get("d").count += 1

    return [begin, count, count, share, last, count, last]


def _many_names() -> list[Round]:
    def begin(channel: Any) -> None:
        made = model(65)
        for number, param in enumerate(made.edges):
            channel.set(f"p{number:02}", Node(0.0, param))
        channel.set("opt", SGD(made.edges))

    def change(channel: Any) -> None:
        channel.get("p64").edges[0].value += 1.0

    return [begin, _step, change, _step]


PROGRAMS: dict[str, Callable[[], list[Round]]] = {
    "SGD": lambda: _training(SGD),
    "Adam": lambda: _training(Adam),
    "EMA": _ema,
    "tied weights": _tied,
    "an array": _array,
    "a cycle": _cycle,
    "an optimizer made later": _made_later,
    "appended models": _appended,
    "none and back": _none_and_back,
    "one replaced": _replaced,
    "states made when asked for": _fickle,
    "65 names": _many_names,
}


APPENDS = frozenset({"appended models"})
"""Programs whose items share: where an attempt has copies, an item that is appended is one, too."""


# --- running ---------------------------------------------------------------------------


def program_of(rounds: list[Round], dies: set[int], *, fails: bool = False, **options: Any) -> Workflow:
    """One task that comes round. In rounds that are in `dies` it dies once, before its commit; with `fails`
    its first attempt fails there."""
    isolation = options.pop("isolation", "thread")
    with workflow("sharing", **options) as flow:

        @task(inject_context=True, isolation=isolation, max_retries=1)
        def turn(context) -> Any:
            rounds[context.cycle](context.channel)
            if context.cycle in dies and (not fails or context.attempt == 1):
                if fails:
                    raise OSError("half way")
                dies.remove(context.cycle)
                raise Killed
            if context.cycle + 1 < len(rounds):
                context.next_iteration()
                return None
            channel = context.channel
            names = channel.keys()
            return picture({name: channel.get(name) for name in names if not name.endswith("__result__")})

    return flow


def run(rounds: list[Round], dies: set[int] | None = None, **options: Any) -> list[Any]:
    """What the program has come to, however often it has died."""
    dies = set(dies or ())
    while True:
        try:
            found: list[Any] = program_of(rounds, dies, session_id="s", **options).execute()
        except Killed:
            continue
        return found


def run_shared(url: str, rounds: list[Round], dies: set[int], **options: Any) -> list[Any]:
    """The same in Redis, where each attempt has copies of its own."""
    found: list[Any] = context_of(url, rounds, dies, **options).execute()
    return found


def context_of(
    url: str, rounds: list[Round], dies: set[int], session: str = "s", **options: Any
) -> ExecutionContext:
    return ExecutionContext.create(
        program_of(rounds, dies, fails=True).graph,
        session_id=session,
        **options,
        queue_backend="redis",
        channel_backend="redis",
        config={"redis_url": url},
    )


# --- at random -------------------------------------------------------------------------

NAMES = "abcd"


def randomly(steps: Sequence[Sequence[tuple[str, int, int]]]) -> list[Round]:
    """Graphs under four names, rewired: a round is what a task does to them."""

    def begin(channel: Any) -> None:
        for number, name in enumerate(NAMES):
            channel.set(name, Node(float(number)))

    def round_of(actions: Sequence[tuple[str, int, int]]) -> Round:
        def do(channel: Any) -> None:
            for action in actions:
                _act(channel, *action)

        return do

    def look(channel: Any) -> None:
        """As the last round, so that it sees what there was before it."""

    return [begin, *map(round_of, steps), look]


def _act(channel: Any, action: str, one: int, other: int) -> None:
    first, second = (channel.get(NAMES[number]) for number in (one, other))
    if action == "fresh":
        channel.set(NAMES[one], Node(9.0))
    elif action == "none":
        channel.set(NAMES[one], None)
    elif action == "same":
        channel.set(NAMES[one], second)
    elif not isinstance(first, Node):
        return
    elif action == "change":
        first.value += 1.0 + other
    elif action == "keep":
        channel.append("log", first)
    elif action == "deep" and first.edges:
        first.edges[-1].value *= 2.0
    elif action == "lift" and first.edges:
        channel.set(NAMES[other], first.edges[-1])
    elif action == "cut" and first.edges:
        first.edges.pop(0)
    elif action == "replace":
        first.value -= 1.0
        channel.set(NAMES[one], Node(first.value, *first.edges))
    elif action == "link" and isinstance(second, Node):
        first.edges.append(second)
    elif action == "borrow" and isinstance(second, Node):
        first.edges.extend(second.edges[:1])


ACTIONS = ("fresh", "none", "same", "change", "keep", "deep", "lift", "cut", "replace", "link", "borrow")

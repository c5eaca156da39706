"""The programs whose sessions are in sessions-1: `python flows.py NAME` runs one, or continues it.

It is a script on purpose: what `__main__` defines is stored with its code. GOLDEN_KILL names the place
at which the process kills itself, GOLDEN_BROKEN makes a task fail. Each program prints one line of JSON.
A change to this file changes the program of stored sessions: add a flow, and leave the others as they are.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import os
import random
import signal
import sys
from decimal import Decimal
from pathlib import PurePosixPath
from uuid import UUID

import numpy

from graflow_ckpt import (
    AtLeast,
    Backoff,
    BestOf,
    DeleteOnSuccess,
    EveryN,
    EverySeconds,
    EveryTask,
    KeepFor,
    KeepLast,
    OfAll,
    OnRequest,
    TaskSpec,
    group,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError


def kill_at(place):
    if os.environ.get("GOLDEN_KILL") == place:
        os.kill(os.getpid(), signal.SIGKILL)


# --- values of every kind --------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: list

    def sum(self):
        return self.x + sum(self.y)


class Counter:
    def __init__(self, start):
        self.count = start
        self.itself = self

    def __getstate__(self):
        return {"count": self.count}

    def __setstate__(self, state):
        self.count = state["count"]
        self.itself = self


PLAIN = {
    "nothing": None,
    "truth": [True, False],
    "numbers": [0, -1, 2**63, -(2**200), 1.5, -0.0, float("inf"), 2 - 3j],
    "texts": ["", "a", "ä€😀", "\ud800", b"", b"\x00\xff", bytearray(b"ab")],
    "tuples": (1, (2, [3, {"a": (4,)}])),
    "keys": {1: "one", "1": "text", (1, 2): "pair", None: "none"},
    "sets": [{1, 2}, frozenset({3})],
    "times": [
        datetime.date(2025, 3, 4),
        datetime.time(5, 6, 7, 8),
        datetime.datetime(2025, 3, 4, 5, 6, 7, 8, tzinfo=datetime.UTC),
        datetime.datetime(2025, 3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=2), "two")),
        datetime.timedelta(days=1, seconds=2, microseconds=3),
    ],
    "others": [Decimal("1.10"), UUID(int=7), PurePosixPath("a/b"), numpy.float32(1.5), numpy.int64(-7)],
}
LIVE = {
    "colour": Colour.RED,
    "point": Point(1, [2, 3]),
    "array": numpy.arange(600.0).reshape(20, 30),
    "fortran": numpy.asfortranarray(numpy.arange(6, dtype="i2").reshape(2, 3)),
    "records": numpy.array([(1, "a"), (2, "b")], dtype=[("n", "i4"), ("s", "U1")]),
    "random": numpy.random.default_rng(7),
    "ordered": __import__("collections").OrderedDict(a=1),
    "retention": (KeepLast(3) & KeepFor(days=7)) | BestOf("loss", 2, "min") | DeleteOnSuccess(),
    "of_all": OfAll(KeepLast(4, per="workflow")),
    "policies": [OnRequest(), EveryN(3), EverySeconds(1.5), EveryTask(), EveryN(2) | EverySeconds(60)],
    "options": [Backoff(0.5), AtLeast(2), TaskSpec("later", priority=3)],
    "error": CheckpointError("the words", hint="the hint", session="s"),
    "partial": functools.partial(Point, 5),
}


@task(inject_context=True)
def put(context):
    channel = context.get_channel()
    for name, value in {**PLAIN, **LIVE}.items():
        channel.set(name, value)
    channel.set("counter", Counter(41))
    channel.append("log", "first")
    channel.append("log", Point(7, []))
    context.checkpoint(metadata={"loss": 0.25, "tags": ["a", {"b": None}]})
    return Point(10, [1])


@task(inject_context=True)
def look(context, put):
    kill_at("look")
    channel = context.get_channel()
    get = channel.get
    wrong = [name for name, value in PLAIN.items() if repr(get(name)) != repr(value)]
    for name in ("colour", "point", "ordered", "retention", "of_all", "policies", "options"):
        if get(name) != LIVE[name] or type(get(name)) is not type(LIVE[name]):
            wrong.append(name)
    for name in ("array", "fortran", "records"):
        if get(name).dtype != LIVE[name].dtype or get(name).tobytes() != LIVE[name].tobytes():
            wrong.append(name)
    if get("random").random() != numpy.random.default_rng(7).random():
        wrong.append("random")
    if (str(get("error")), get("error").ids) != (str(LIVE["error"]), LIVE["error"].ids):
        wrong.append("error")
    if get("partial")([1]) != Point(5, [1]):
        wrong.append("partial")
    if get("counter").count != 41 or get("counter").itself is not get("counter"):
        wrong.append("counter")
    if get("log") != ["first", Point(7, [])] or put.sum() != 11:
        wrong.append("log")
    return {"wrong": wrong}


def values():
    with workflow("values", session_id="values") as flow:
        put >> look
        return flow.execute()


# --- code of values: functions without a name, and a workflow -------------------------------


def adder(n):
    def add(m):
        return n + m

    return add


@functools.lru_cache(maxsize=4)
def cached(n):
    return n * 2


@task(inject_context=True)
def make(context):
    channel = context.get_channel()
    channel.set("add", adder(3))
    channel.set("double", lambda n: n * 2)
    channel.set("cached", cached)
    channel.set("inner", type("Inner", (), {"seven": lambda self: 7})())
    with workflow("inside", session_id="inside", keep=KeepLast(3), checkpoint=EveryN(5)) as inside:
        put >> look
    channel.set("workflow", inside)
    channel.set("makers", [task, workflow, group, KeepLast, CheckpointError])
    context.checkpoint()
    return adder(100)


@task(inject_context=True)
def call(context, make):
    kill_at("call")
    get = context.get_channel().get
    flow = get("workflow")
    return {
        "called": [get("add")(4), get("double")(4), get("cached")(4), get("inner").seven(), make(1)],
        "workflow": [
            flow.name,
            sorted(flow.graph.nodes),
            repr(flow.settings.keep),
            repr(flow.settings.policy),
        ],
        "makers": [maker.__name__ for maker in get("makers")],
    }


def code():
    with workflow("code", session_id="code") as flow:
        make >> call
        return flow.execute()


# --- loops ---------------------------------------------------------------------------------


@task(inject_context=True, max_cycles=20)
def learn(context):
    channel = context.get_channel()
    weights = channel.get("weights", default=None)
    if weights is None:
        channel.set("weights", weights := numpy.zeros(8))
    cycle = context.cycle
    weights += [random.random() for _ in weights]  # in place, and the random state is kept
    channel.append("seen", cycle)
    if cycle in (2, 4):
        context.checkpoint(metadata={"loss": 1.0 / (cycle + 1)})
    kill_at(f"learn {cycle}")
    if cycle < 7:
        context.next_iteration()
    return cycle


@task(inject_context=True)
def told(context, learn):
    kill_at("told")
    weights = context.get_channel().get("weights")
    return {"last": learn, "seen": context.get_channel().get("seen"), "weights": weights.tobytes().hex()}


def loop_of(session, **settings):
    random.seed(5)  # a session that continues has its own random state
    with workflow("loop", session_id=session, **settings) as flow:
        learn >> told
        return flow.execute()


def loop():
    return loop_of("loop", checkpoint=EveryN(2), keep=KeepLast(3))


def segments():
    return loop_of("segments", durability="journal")


def torn():
    return loop_of("torn", durability="journal")


def rewound():
    return loop_of("rewound", checkpoint=EveryN(3))


def rewound_now():
    return loop_of("rewound_now", checkpoint=EveryN(3))


def rewound_journal():
    return loop_of("rewound_journal", durability="journal")


def origin():
    return loop_of("origin")


def forked():
    return loop_of("forked")


def named():
    random.seed(5)
    with workflow("loop", session_id="named") as flow:
        learn >> told
        result = flow.execute()
        if not os.path.exists("best.pkl"):
            flow.execution_context.checkpoint("best.pkl", {"loss": 0.5, "by": "name"})
        return result


# --- attempts: claimed, failed --------------------------------------------------------------


@task(inject_context=True)
def first(context):
    context.get_channel().set("sum", 1)
    context.checkpoint()
    return 1


@task(on_interrupted="skip")
def doubtful(first):
    kill_at("doubtful")
    return first + 1


@task(inject_context=True)
def last(context):
    return {
        "doubtful": context.get_result("doubtful", default="skipped"),
        "sum": context.get_channel().get("sum"),
    }


def claimed():
    with workflow("claimed", session_id="claimed", durability="journal") as flow:
        first >> doubtful >> last
        return flow.execute()


@task(max_retries=1)
def broken(first):
    if os.environ.get("GOLDEN_BROKEN"):
        raise ValueError("it is broken")
    return first + 10


@task
def after(broken):
    return {"broken": broken}


def failed():
    with workflow("failed", session_id="failed") as flow:
        first >> broken >> after
        return flow.execute()


# --- groups, and tasks made at run time --------------------------------------------------------


@task(inject_context=True)
def spread(context):
    for n in range(3):
        context.next_task(task(id=f"made_{n}")(functools.partial(times, n)), before=["right"])
    context.checkpoint()
    return 2


def times(n):
    kill_at(f"made_{n}")
    return n * 10


@task
def left(spread):
    return spread + 1


@task(inject_context=True)
def right(context, spread):
    return spread + sum(context.get_result(f"made_{n}") for n in range(3))


@task(inject_context=True)
def joined(context):
    names = ["left", "right", *(f"made_{n}" for n in range(3))]
    return {name: context.get_result(name) for name in names}


def groups():
    with workflow("groups", session_id="groups", durability="journal") as flow:
        spread >> group(left, right, name="both", policy=AtLeast(2)) >> joined
        return flow.execute()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](), sort_keys=True))

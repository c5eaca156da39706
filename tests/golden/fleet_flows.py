"""The programs whose sessions are in fleet-1: `python fleet_flows.py NAME…` hands them to the fleet.

As a script, so that the code of `__main__` travels with the session; `by_reference` is submitted from the
module. Each body leaves a line in GOLDEN_RUNS. In GOLDEN_HELD are the tasks that never return, and
in GOLDEN_BROKEN is whether one fails: both are of the workers. A change to this file changes the program of
a stored session: add a flow, and leave the others as they are.
"""

from __future__ import annotations

import functools
import os
import sys
import threading

import numpy

from graflow_ckpt import AtLeast, Backoff, EveryN, group, task, workflow


def ran(context):
    place = os.open(os.environ["GOLDEN_RUNS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(place, f"{context.session_id} {context.task_id}\n".encode())
    os.close(place)
    if context.task_id in os.environ.get("GOLDEN_HELD", "").split():
        threading.Event().wait()


class Point:  # not a dataclass: methods of the standard library's would travel with it, with their paths
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)

    __hash__ = None


@task(inject_context=True)
def first(context):
    ran(context)
    context.get_channel().set("sum", 1)
    return 1


@task(inject_context=True)
def last(context, first):
    ran(context)
    return {"first": first, "sum": context.get_channel().get("sum")}


@task(inject_context=True, queue="gpu")
def later(context, first):
    ran(context)
    return {"first": first}


# --- ended -------------------------------------------------------------------------------------


def done():
    with workflow("done", session_id="done") as flow:
        first >> last
    flow.submit(ledger=True)


@task(inject_context=True, max_retries=1, backoff=0.01)
def broken(context, first):
    ran(context)
    if os.environ.get("GOLDEN_BROKEN"):
        raise ValueError("it is broken")
    return first + 10


@task(inject_context=True)
def after(context, broken):
    ran(context)
    return {"broken": broken}


def failed():
    with workflow("failed", session_id="failed") as flow:
        first >> broken >> after
    flow.submit()


@task(inject_context=True, max_retries=0)
def square(context, number):
    ran(context)
    if number == 2:
        raise ValueError("two")
    return Point(number, [number * number])


def calls():
    square.submit_many([1, 2, 3], key="calls")


def cancelled():
    with workflow("cancelled", session_id="cancelled") as flow:
        flow.add(first)
    flow.submit().cancel("golden")


# --- begun -------------------------------------------------------------------------------------


@task(inject_context=True)
def put(context):
    ran(context)
    channel = context.get_channel()
    shared = [1, Point(2, [3])]
    channel.set("plain", {"texts": ["", "ä€😀", b"\x00\xff"], "numbers": (0, -(2**70), 1.5), (1, 2): None})
    channel.set("large", list(range(3_000)))
    channel.set("array", numpy.arange(600.0).reshape(20, 30))
    channel.set("function", lambda n: n * 2)
    channel.set("left", {"shared": shared})
    channel.set("right", {"shared": shared})
    channel.append("log", "first")
    channel.append("log", Point(7, []))
    return Point(10, [1])


@task(inject_context=True, queue="gpu")
def look(context, put):
    ran(context)
    get = context.get_channel().get
    plain = {"texts": ["", "ä€😀", b"\x00\xff"], "numbers": (0, -(2**70), 1.5), (1, 2): None}
    return {
        "plain": get("plain") == plain,
        "large": get("large") == list(range(3_000)),
        "array": get("array").tobytes() == numpy.arange(600.0).tobytes(),
        "function": get("function")(21),
        "shared": get("left")["shared"] == get("right")["shared"] == [1, Point(2, [3])],
        "log": get("log") == ["first", Point(7, [])],
        "put": put == Point(10, [1]),
    }


def values():
    with workflow("values", session_id="values") as flow:
        put >> look
    flow.submit()


def times(n, context):
    ran(context)
    return n * 10


@task(inject_context=True)
def spread(context):
    ran(context)
    for n in range(3):
        body = functools.partial(times, n)
        context.next_task(task(id=f"made_{n}", queue="gpu", inject_context=True)(body), before=["right"])
    return 2


@task(inject_context=True)
def left(context, spread):
    ran(context)
    return spread + 1


@task(inject_context=True)
def right(context, spread):
    ran(context)
    return spread + sum(context.get_result(f"made_{n}") for n in range(3))


@task(inject_context=True)
def joined(context):
    ran(context)
    return {name: context.get_result(name) for name in ("left", "right", "made_2")}


def made():
    with workflow("made", session_id="made") as flow:
        spread >> group(left, right, name="both", policy=AtLeast(2)) >> joined
    flow.submit()


@task(inject_context=True, queue="slow", priority=3, backoff=Backoff(0.5))
def slow(context, first):
    ran(context)
    return first + 1


@task(inject_context=True)
def ends(context, later, slow):
    ran(context)
    return [later, slow]


def by_reference():
    with workflow("by_reference", session_id="by_reference", max_parallel=2) as flow:
        first >> (later | slow) >> ends
    flow.submit()


@task(inject_context=True)
def keeps(context):
    ran(context)
    context.get_channel().set("sum", 5)
    context.checkpoint(metadata={"loss": 0.5, "by": "task"})
    return 5


@task(inject_context=True, queue="gpu")
def kept_it(context, keeps):
    ran(context)
    return keeps + context.get_channel().get("sum")


def kept():
    with workflow("kept", session_id="kept", checkpoint=EveryN(50)) as flow:
        keeps >> kept_it
    flow.submit()


@task(inject_context=True, max_cycles=9)
def learn(context):
    ran(context)
    context.get_channel().append("seen", context.cycle)
    if context.cycle < 5:
        context.next_iteration()
    return context.cycle


def loop():
    with workflow("loop", session_id="loop") as flow:
        flow.add(learn)
    flow.submit(max_steps=2)


# --- claimed when the workers die --------------------------------------------------------------------


@task(inject_context=True)
def held(context, first):
    ran(context)
    return first + 100


def claimed():
    with workflow("claimed", session_id="claimed") as flow:
        first >> held
    flow.submit()


@task(inject_context=True, on_interrupted="ask")
def charge(context, first):
    ran(context)
    return first + 200


def asked():
    with workflow("asked", session_id="asked") as flow:
        first >> charge
    flow.submit()


# --- not begun -------------------------------------------------------------------------------------


@task(inject_context=True)
def begin(context, number, point):
    ran(context)
    return [number, point.x]


def waiting():
    with workflow("waiting", session_id="waiting") as flow:
        flow.add(begin)
    flow.submit(inputs={"number": 4, "point": Point(1, [2])})


def delayed():
    square.submit(7, key="delayed", delay=20)


def paused():
    with workflow("paused", session_id="paused") as flow:
        first >> last
    flow.submit().pause("until somebody comes")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()

"""How a session comes to be: as a whole or not at all, on a real server, looked at between the steps."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from graflow_ckpt import task, workflow
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.core.errors import (
    BadSessionId,
    GraphError,
    KeyTaken,
    NoSession,
    NotStorable,
    ServerError,
    ServerFull,
    ServerGone,
    SessionExists,
)
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.body.bind import SPREAD, Binding, bind
from graflow_ckpt.fleet import accepting
from graflow_ckpt.fleet.accepting import Draft, Terms, accept, call_of, data_of, pages
from graflow_ckpt.fleet.client import Client, Fleet
from graflow_ckpt.fleet.deaths import Hands
from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS, discard
from graflow_ckpt.fleet.programs import Programs
from graflow_ckpt.fleet.steward import FleetRepair
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.servers import Server
from tests.unit.fleet.played import dead, set_status


def spec(name: str) -> Op:
    return ("enqueue", name, None, 0, 0, "default", "direct")


def accepted(client: Client, pages: Any, session: str = "s", **terms: Any) -> list[str]:
    """The tokens that were to be posted when it was."""
    posted: list[str] = []
    draft = Draft(session, {"workflow": "w"}, pages, None, Terms(session, **terms))
    cells = SealedCells(session, client.keyring)
    accept(client.link, draft, cells, lambda token, queue: posted.append(queue))
    return posted


def left(client: Client, session: str = "s") -> list[bytes]:
    """The keys of a session; replies are kept for a while, and expire."""
    redis: Any = client.link.client
    return [key for key in redis.scan_iter(match=f"{keys_of(session)}*") if b":x:" not in key]


# --- step by step ------------------------------------------------------------------------


def test_it_is_listed_when_it_is_there_and_runs_when_its_last_spec_is_in(
    client: Client, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    make = accepting._made

    def watched(*args: Any) -> bool:
        looks = [(client.sessions(), redis.exists(f"{keys_of('s')}c"))]
        made = make(*args)
        seen.append([*looks, (client.sessions(), redis.exists(f"{keys_of('s')}c"))])
        return made

    monkeypatch.setattr(accepting, "_made", watched)

    def pages() -> Iterator[list[Op]]:
        for n in range(3):
            status = client.session("s").status()
            seen.append((status.status, status.ready, status.tokens))
            yield [spec(f"t{n}")]

    draft = Draft("s", {"workflow": "w"}, pages(), None, Terms("s"))
    accept(client.link, draft, SealedCells("s", client.keyring), lambda token, queue: None)

    # a page is sent when it is known whether another follows
    assert seen == [[([], 0), (["s"], 1)], ("init", 0, 0), ("init", 0, 0), ("init", 1, 0)]
    assert (client.session("s").status().status, client.session("s").status().ready) == ("running", 3)


def test_a_token_is_posted_for_each_queue(client: Client) -> None:
    gpu = ("enqueue", "g", None, 0, 0, "gpu", "direct")

    assert sorted(accepted(client, [[spec("a")], [gpu]])) == ["default", "gpu"]


def test_a_session_of_nothing_is_completed(client: Client) -> None:
    assert accepted(client, [[]]) == []
    assert client.session("s").status().status == "completed"


def test_its_terms_are_kept_with_it(client: Client, redis: Any) -> None:
    accepted(
        client, [[spec("a")]], max_steps=7, ttl=60, kept=120, store="/tmp/x", ledger=True, value_limit=5000
    )

    cold = {name.decode(): value for name, value in redis.hgetall(f"{keys_of('s')}h").items()}
    assert (cold["ttl"], cold["kept"], cold["store"], cold["limit"]) == (b"60", b"120", b"/tmp/x", b"5000")
    assert client.session("s").status().max_steps == 7


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"session": "a b"}, BadSessionId),
        ({"session": ""}, BadSessionId),
        ({"session": "x" * 65}, BadSessionId),
        ({"session": "s:1"}, BadSessionId),
        ({"existing": "perhaps"}, ValueError),
        ({"ttl": 0}, ValueError),
        ({"priority": 2**15}, GraphError),
        ({"priority": -(2**15)}, GraphError),
        ({"value_limit": 10}, ValueError),
    ],
)
def test_terms_that_no_session_can_have_are_refused(terms: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Terms(**terms)


def test_one_of_that_name_is_refused_or_left_as_it_is(client: Client) -> None:
    accepted(client, [[spec("a")]])

    with pytest.raises(SessionExists, match="There is a session s already"):
        accepted(client, [[spec("b")]])
    assert accepted(client, [[spec("b")]], existing="return") == []

    assert [one["task_id"] for one in client.session("s").pending()] == ["a"]


# --- what is cut short -------------------------------------------------------------------


def broken(error: BaseException) -> Iterator[list[Op]]:
    yield [spec("a")]
    yield [spec("b")]
    raise error


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_submission_that_fails_leaves_nothing_behind(client: Client, kind: type[BaseException]) -> None:
    with pytest.raises(kind) as raised:
        accepted(client, broken(kind("no more")))

    assert raised.value.__notes__ == ["Session s was not accepted, and nothing of it is left."]
    assert left(client) == []
    assert client.sessions() == []
    assert accepted(client, [[spec("a")]]) == ["default"]


def test_one_that_runs_already_is_not_taken_back(client: Client) -> None:
    """The last commit was carried out, and then something went wrong."""

    def fails(token: str, queue: str) -> None:
        raise KeyTaken("of RQ")

    draft = Draft("s", {"workflow": "w"}, [[spec("a")]], None, Terms("s"))
    with pytest.raises(KeyTaken) as raised:
        accept(client.link, draft, SealedCells("s", client.keyring), fails)

    assert "is not known" in raised.value.__notes__[0]
    assert client.session("s").status().status == "running"


KILLED = """
import os, signal, sys
from graflow_ckpt import task
from graflow_ckpt.fleet import client

@task
def one(n): ...

def pages(ops):
    for number, page in enumerate(whole(ops)):
        if number == 2:  # one has been sent
            os.kill(os.getpid(), signal.SIGKILL)
        yield page

whole, client.pages = client.pages, pages
one.submit_many(range(3000), url=sys.argv[1], key="k")
"""


def killed_submitter(url: str) -> str:
    """The session that a process had begun to submit when it was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, url], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    link = open_link(url)
    try:
        (session,) = Client(link).sessions()
    finally:
        link.close()
    return session


def test_a_submitter_that_is_killed_leaves_a_session_that_never_runs_and_makes_room_for_the_next(
    client: Client, redis_url: str
) -> None:
    session = killed_submitter(redis_url)

    status = client.session(session).status()
    assert (status.status, status.ready, status.tokens) == ("init", 1000, 0)
    with pytest.raises(Exception, match="it cannot go on"):
        client.session(session).resume()
    assert accepted(client, [[spec("a")]], session) == ["default"]
    assert [one["task_id"] for one in client.session(session).pending()] == ["a"]


def test_one_that_is_being_submitted_by_somebody_alive_is_there(client: Client) -> None:
    def pages() -> Iterator[list[Op]]:
        yield [spec("a")]
        with pytest.raises(SessionExists):
            accepted(client, [[spec("b")]])
        yield [spec("c")]

    accepted(client, pages())

    assert [one["task_id"] for one in client.session("s").pending()] == ["a", "c"]


def test_of_two_that_clear_it_away_one_makes_it(client: Client, redis_url: str, redis: Any) -> None:
    """The second has seen it dead, too, and comes late."""
    session = killed_submitter(redis_url)
    maker = redis.hget(f"{keys_of(session)}h", "maker")

    def pages() -> Iterator[list[Op]]:
        assert not discard(client.link, session, maker)
        yield [spec("a")]

    accepted(client, pages(), session)

    assert client.session(session).status().status == "running"


def test_a_maker_of_elsewhere_is_not_taken_for_dead(client: Client, redis: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        accepted(client, ([spec(str(1 // (2 - n)))] for n in range(4)))
    accepted(client, [[spec("a")]])
    set_status(client, "s", "init")
    elsewhere = {**asdict(dead()), "boot": "another machine"}
    redis.hset(f"{keys_of('s')}h", "maker", json.dumps(elsewhere))

    with pytest.raises(SessionExists):
        accepted(client, [[spec("b")]])


RACE = """
import sys
from graflow_ckpt import task
from graflow_ckpt.core.errors import SessionExists

@task
def one(n): ...

print("ready", flush=True)
sys.stdin.readline()
try:
    one.submit(1, url=sys.argv[1], key="k")
    print("won")
except SessionExists:
    print("lost")
"""


def test_of_several_processes_that_submit_it_at_the_same_time_one_wins(
    client: Client, redis_url: str
) -> None:
    command = [sys.executable, "-c", RACE, redis_url]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    several = [subprocess.Popen(command, **pipes) for _ in range(4)]
    assert [process.stdout.readline() for process in several] == ["ready\n"] * 4

    for process in several:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0].strip() for process in several)

    assert said == ["lost", "lost", "lost", "won"]
    (session,) = client.sessions()
    assert client.session(session).status().ready == 1


# --- servers -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["c", "h", "q:default", "n"])
def test_something_else_under_a_key_of_ours_is_named_and_left_alone(client: Client, key: str) -> None:
    redis: Any = client.link.client
    name = f"{keys_of('s')}{key}"
    redis.set(name, "theirs")

    with pytest.raises(KeyTaken) as raised:
        accepted(client, [[spec("a")]])

    assert name in raised.value.keys
    assert redis.get(name) == b"theirs"
    assert raised.value.__notes__ == ["Session s was not accepted, and nothing of it is left."]
    assert client.sessions() == []


@pytest.mark.parametrize("key", ["graflow:sessions", "graflow:active"])
def test_so_is_it_under_a_list_of_ours(client: Client, key: str, redis: Any) -> None:
    redis.set(key, "theirs")

    with pytest.raises(KeyTaken, match=key):
        accepted(client, [[spec("a")]])

    assert left(client) == []


def test_a_server_that_is_full_refuses_it_and_keeps_nothing_of_it(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"maxmemory-policy": "noeviction"})
    client = Client(open_link(server.url))
    server.ask("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(ServerFull) as raised:
        accepted(client, [[spec("a")]])

    server.ask("CONFIG", "SET", "maxmemory", "0")
    assert "has used the memory" in str(raised.value)
    assert left(client) == []
    assert client.sessions() == []


def test_a_submission_that_a_full_server_refuses_leaves_the_running_session_of_that_id_on_the_lists(
    own_redis: Callable[..., Server],
) -> None:
    server = own_redis({"maxmemory-policy": "noeviction"})
    client = Client(open_link(server.url))
    accepted(client, [[spec("a")]])
    server.ask("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises((ServerFull, SessionExists)):
        accepted(client, [[spec("b")]])

    server.ask("CONFIG", "SET", "maxmemory", "0")
    assert client.sessions() == ["s"]
    assert server.ask("ZRANGE", ACTIVE, 0, -1) == [b"s"]


@pytest.mark.parametrize("ahead", [3600, -7200])
def test_the_clock_of_the_submitter_does_not_count(
    client: Client, redis: Any, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead)
    sweeper = FleetRepair(Hands(client.link, client.carrier), "here")

    def pages() -> Iterator[list[Op]]:
        yield [spec("a")]
        sweeper.round()  # what is being sent is looked at, and left alone
        yield [spec("b")]

    accepted(client, pages())
    client.watch("s")

    assert abs(float(client.session("s").facts()["created"]) - right()) < 60
    assert abs(redis.zscore(SESSIONS, "s") / 1000 - right()) < 60
    assert redis.zscore(ACTIVE, "s") <= right() * 1000
    sweeper.round()
    assert redis.zscore(ACTIVE, "s") > right() * 1000  # it was looked at


def test_a_server_that_goes_away_in_the_middle_is_waited_for(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    client = Client(open_link(server.url))

    def pages() -> Iterator[list[Op]]:
        yield [spec("a")]
        yield [spec("b")]
        server.restart()
        yield [spec("c")]

    accepted(client, pages())

    assert [one["task_id"] for one in client.session("s").pending()] == ["a", "b", "c"]


def test_a_server_that_does_not_come_back_is_an_error_that_says_how_far_it_came(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graflow_ckpt.fleet.accepting.PATIENCE", 0.2)
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    client = Client(open_link(server.url))

    def pages() -> Iterator[list[Op]]:
        yield [spec("a")]
        yield [spec("b")]
        server.kill()
        yield [spec("c")]

    began = time.monotonic()
    with pytest.raises(ServerError) as raised:
        accepted(client, pages())
    assert isinstance(raised.value, ServerGone)
    assert time.monotonic() - began < 10
    assert "if not, it will never run" in raised.value.__notes__[0]

    server.start()
    assert client.session("s").status().status == "init"


def test_a_session_that_is_gone_cannot_be_looked_at(client: Client) -> None:
    with pytest.raises(NoSession, match="There is no session s at"):
        client.session("s").status()


@pytest.mark.parametrize("given", ["high", 1.5])
def test_a_priority_that_is_no_whole_number_is_named(given: Any) -> None:
    with pytest.raises(GraphError, match=f"priority: {given!r} is not a whole number"):
        Terms(priority=given)


@pytest.mark.parametrize("name", ["delay", "ttl", "max_steps", "value_limit"])
@pytest.mark.parametrize("given", ["5", 10**30, float("inf"), float("nan"), -1])
def test_a_number_that_redis_cannot_hold_is_refused_by_the_name_of_the_option(name: str, given: Any) -> None:
    with pytest.raises(GraphError, match=f"{name}: {given!r} is not "):
        Terms(**{name: given})


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("session", "Give key"),
        ("session_id", "Give key"),
        ("prioriti", "Did you mean 'priority'?"),
        ("x", "It has:"),
    ],
)
def test_an_option_that_calls_do_not_have_is_refused_with_a_remedy(option: str, hint: str) -> None:
    given: Any = {option: "x"}

    with pytest.raises(GraphError, match=rf"priced.submit_many\(\) has no option '{option}'") as many:
        priced.submit_many([1], url="redis://nowhere", **given)
    with pytest.raises(GraphError, match=rf"priced.submit_call\(\) has no option '{option}'") as one:
        priced.submit_call((1,), url="redis://nowhere", **given)
    assert str(many.value.hint).startswith(hint)
    assert str(one.value.hint).startswith(hint)


# --- the same once more --------------------------------------------------------------------


@task
def priced(item: str, count: int = 1) -> str:
    return f"{count} {item}"


def test_a_key_with_other_arguments_is_refused_instead_of_giving_what_the_first_have_come_to(
    client: Client,
) -> None:
    fleet = Fleet(client)
    again: Any = {"url": fleet, "key": "order-7", "existing": "return"}
    first = priced.submit("tea", count=2, **again)

    assert priced.submit("tea", count=2, **again).session == first.session
    with pytest.raises(SessionExists, match="other arguments"):
        priced.submit("coffee", count=2, **again)
    with pytest.raises(SessionExists, match="other arguments"):
        priced.submit_many([("tea", 2)], **again)


def test_inputs_of_a_workflow_under_an_id_are_compared_too(client: Client) -> None:
    def flow() -> Any:
        with workflow("flow", session_id="one") as made:
            made.add(priced)
        return made

    again: Any = {"existing": "return"}
    flow().submit(Fleet(client), inputs={"item": "tea"}, **again)

    assert flow().submit(Fleet(client), inputs={"item": "tea"}, **again).session == "one"
    with pytest.raises(SessionExists, match="other arguments"):
        flow().submit(Fleet(client), inputs={"item": "coffee"}, **again)


@task
def scale(rows: Any, factor: int = 2, *, note: str = "") -> Any:
    return rows


@task(inject_context=True)
def told(context: Any, data: Any, other: int) -> None: ...


@task
def nothing() -> None: ...


def binding(one: Task) -> Binding:
    graph = TaskGraph()
    graph.add(one)
    graph.compile([one.name])
    return bind(graph, one)


def given(one: Task, *args: Any, **kwargs: Any) -> Any:
    cell = data_of(binding(one), args, kwargs)
    assert not isinstance(cell, Live)
    return None if cell is None else decode(cell)


def test_one_argument_is_the_data_and_several_are_spread() -> None:
    assert given(nothing) is None
    assert given(scale, 3) == 3
    assert given(scale, [1, 2]) == [1, 2]
    assert given(scale, 3, 4) == {SPREAD: {"rows": 3, "factor": 4}}
    assert given(scale, 3, note="n") == {SPREAD: {"rows": 3, "note": "n"}}
    assert given(told, 1, 2) == {SPREAD: {"data": 1, "other": 2}}


def test_a_dict_is_an_argument_like_any_other() -> None:
    assert given(scale, {"a": 1}) == {SPREAD: {"rows": {"a": 1}}}


@pytest.mark.parametrize(
    ("args", "kwargs", "told_"),
    [
        ((1, 2, "n", 4), {}, r"scale\(\) takes 3 arguments, and 4 were given"),
        ((1,), {"rows": 2}, r"scale\(\) got two values for argument 'rows'"),
        ((1,), {"row": 2}, r"scale\(\) got an unknown argument 'row'"),
        ((), {"factor": 2}, r"scale\(\) lacks the argument 'rows'"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any, told_: str) -> None:
    with pytest.raises(TypeError, match=told_):
        data_of(binding(scale), args, kwargs)


def test_a_task_without_parameters_takes_none() -> None:
    with pytest.raises(TypeError, match=r"nothing\(\) takes no arguments, and 1 were given"):
        data_of(binding(nothing), (1,), {})


def test_a_bound_argument_need_not_be_given_and_can_be() -> None:
    bound = scale.bind(rows=1)

    assert given(bound) is None
    assert given(bound, 2) == 2


def test_what_cannot_be_stored_is_named_by_its_parameter() -> None:
    for args, kwargs in (((threading.Lock(),), {}), ((1,), {"note": threading.Lock()})):
        with pytest.raises(NotStorable) as raised:
            data_of(binding(scale), args, kwargs)
        assert raised.value.path == ("note" if kwargs else "rows")


def test_an_item_is_an_argument_a_tuple_of_them_or_a_dict_by_name() -> None:
    point = namedtuple("point", "x y")(1, 2)

    assert call_of("a.png") == (("a.png",), {})
    assert call_of((1, 2)) == ((1, 2), {})
    assert call_of({"rows": 1}) == ((), {"rows": 1})
    assert call_of(({"rows": 1},)) == (({"rows": 1},), {})
    assert call_of([1, 2]) == (([1, 2],), {})
    assert call_of(point) == ((point,), {})
    assert call_of(()) == ((), {})


def test_specs_are_sent_in_portions_by_number_and_by_size() -> None:
    def sizes(*ops: tuple[Any, ...]) -> list[int]:
        return [len(page) for page in pages(ops)]

    assert sizes() == [0]
    assert sizes(*[("enqueue", "t", None)] * 2500) == [1000, 1000, 500]
    assert sizes(*[("enqueue", "t", None)] * 2000) == [1000, 1000, 0]
    assert sizes(*[("enqueue", "t", bytes(400_000))] * 7) == [3, 3, 1]


# --- programs ---------------------------------------------------------------------------


@task
def needs(rows: int) -> int:
    return rows


def test_a_parameter_may_be_filled_by_an_input_of_the_session(client: Client, redis: Any) -> None:
    flow = workflow("flow").add(needs)

    client.submit(flow.graph, flow.settings, ("needs",), {"rows": 3}, Terms("s"))

    digest = redis.hget(f"{keys_of('s')}h", "code").decode()
    loaded = Programs(client.link, client.keyring).load(digest, ("needs",))
    assert loaded.parcel.given == ("rows",)
    assert list(loaded.bindings) == ["needs"]

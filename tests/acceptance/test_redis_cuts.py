"""Checkpoints of sessions that several workers share, saves that fail, and sessions of tomorrow's format."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryN,
    EverySeconds,
    EveryTask,
    KeepLast,
    WhenIdle,
    Workflow,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError, SchemaUnsupported
from graflow_ckpt.engine.reaping import Keeper, release_the_dead
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.deaths import OPAQUE, Hands
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS, host_key, place
from graflow_ckpt.fleet.status import read_all
from graflow_ckpt.fleet.steward import FleetRepair
from graflow_ckpt.sessions.redis.keys import FORMAT, OLDEST, ROUNDS, START, keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import frozen, read_paged, read_state
from tests.acceptance.elsewhere import Fleet
from tests.acceptance.fleet_tasks import named
from tests.acceptance.fleets import Fleet as OwnFleet
from tests.acceptance.places import Make, in_redis, session_in_redis
from tests.loops import LONG, chain, cuts, loop, of
from tests.servers import Server
from tests.stretch import comes


@pytest.fixture
def make(redis_url: str, redis_server: Server, key: str) -> Make:
    return in_redis(redis_server.client())


@pytest.fixture
def fleet(redis_url: str, make: Make, own_folder: Path) -> Iterator[Fleet]:
    made = Fleet(redis_url, str(own_folder / "checkpoints"), workers=3)
    yield made
    made.close()


def submitted(fleet: Fleet, flow: Workflow) -> Handle:
    starts = tuple(flow.graph.roots())
    return fleet.client.submit(flow.graph, flow.settings, starts, {}, Terms("s", store=fleet.store))


# --- several workers ---------------------------------------------------------------------


MEETING = threading.Barrier(3, timeout=LONG)


def wide(members: int, *, meet: bool = False, **options: Any) -> Workflow:
    """Tasks that can all run at once, twice in a row.

    With `meet` three of them wait for each other, nine go on, and all others wait for a first cut.
    """
    then = after_a_cut if meet else short
    bodies = [meets if meet and number < 3 else short if number < 12 else then for number in range(members)]
    chains = (of(body, f"first{n}") >> of(then, f"then{n}") for n, body in enumerate(bodies))
    return workflow("wide", "s", **options).add(*chains)


def meets() -> None:
    """All three workers are there then."""
    MEETING.wait()


def after_a_cut() -> None:
    assert comes(lambda: bool(cuts()), LONG)


def short() -> None:
    threading.Event().wait(0.001)


def second_time(context: Any) -> None:
    if context.attempt == 1:
        raise ConnectionError("not yet")


@pytest.mark.parametrize("together", [False, True], ids=["in turns", "at once"])
def test_workers_of_one_session_cut_once_for_each_due_moment(fleet: Fleet, together: bool) -> None:
    handle = submitted(fleet, wide(30, meet=together, checkpoint=EveryN(10), keep=KeepLast(99)))

    status = fleet.work_together(handle) if together else fleet.work(handle)

    assert (status.status, status.steps) == ("completed", 60)
    assert fleet.ran_by("s") == 3
    made = cuts()
    assert 1 <= len(made) <= 6
    assert all(later - earlier >= 10 for earlier, later in pairwise([0, *made]))
    assert made[0] < 20


def test_numbers_of_cuts_go_up_with_what_they_show(fleet: Fleet) -> None:
    handle = submitted(fleet, wide(30, checkpoint=EveryN(3), keep=KeepLast(99)))

    fleet.work_together(handle)

    made = list(reversed(CheckpointManager.list_checkpoints("s")))
    assert [m.sequence for m in made] == sorted({m.sequence for m in made})
    assert [m.transition for m in made] == sorted(m.transition for m in made)


def test_workers_keep_the_last_cuts_of_all_of_them(fleet: Fleet) -> None:
    handle = submitted(fleet, wide(30, checkpoint=EveryN(5), keep=KeepLast(3)))

    fleet.work(handle)

    assert fleet.ran_by("s") > 1
    assert len(cuts()) == 3
    assert min(cuts()) > 30


def test_an_interval_of_steps_is_a_policy_in_redis_too(redis_server: Server, make: Make) -> None:
    graph = loop(7, make=make).graph
    context = session_in_redis(
        redis_server.client(), graph, "turn", session_id="s", auto_checkpoint_interval=3
    )

    context.execute()

    assert cuts() == [3, 6]
    assert context.last_checkpoint_path == CheckpointManager.get_latest("s")


def test_a_wave_is_through_when_nobody_runs_anything(fleet: Fleet) -> None:
    """A worker that has nothing to do is not yet a session that has nothing to do."""
    wave = tuple(of(short, f"a{number}") for number in range(6))
    last = of(second_time, "last", max_retries=1, backoff=0.1, jitter=0.0)
    flow = chain(wave, last, session_id="s", checkpoint=WhenIdle(), keep=KeepLast(99))

    fleet.work_together(submitted(fleet, flow))

    held = [m.steps for m in reversed(CheckpointManager.list_checkpoints("s"))]
    assert held[-1] == 7
    assert 6 in held  # nothing runs between the two attempts of the last one


def test_a_policy_by_time_outlives_the_slices(fleet: Fleet) -> None:
    """Slices begin anew every few milliseconds here; the time since the last cut does not."""
    handle = submitted(fleet, wide(60, checkpoint=EverySeconds(0.05)))

    fleet.work(handle)

    assert len(cuts()) >= 1


def test_a_cut_at_the_end_of_a_slice_may_take_longer_than_its_process_has_when_a_token_is_lost(
    fleet: Fleet,
) -> None:
    """The commit before it has retired the token: the keeper hears that it is void, and nothing is lost."""
    lost, held_against_it = threading.Event(), []

    def saved(event: Event) -> None:
        if event.kind == "checkpoint_saved":
            lost.clear()  # an answer to the keeper may come before that to the commit; a worker looks again
            held_against_it.append(lost.wait(0.5))

    (worker, *_) = fleet.workers
    worker.keeper = Keeper(0.15)  # it asks every 50 ms
    worker.budget = LONG  # one slice is enough, also where the machine stalls
    worker.watched_by(lost.set, lambda: None)
    worker.observers = (saved,)
    submitted(fleet, loop(1, checkpoint=EveryTask()))
    token = fleet.token()
    assert token is not None

    worker.run(*token)

    assert cuts() == [1]
    assert held_against_it == [False]


# --- saves that fail ---------------------------------------------------------------------


def block() -> None:
    """From now on nothing can be written there."""
    shutil.rmtree("checkpoints", ignore_errors=True)
    Path("checkpoints").touch()


def unblock() -> None:
    Path("checkpoints").unlink()


def test_a_failed_save_is_an_event_and_does_not_stop_the_run(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    handles = []

    def ask(context: Any) -> None:
        if context.cycle == 0:
            block()
            handles.append(context.checkpoint())

    flow = loop(3, ask, make=make, observers=[seen.append])

    assert flow.execute() == 2
    (failed,) = [event for event in seen if event.kind == "checkpoint_failed"]
    assert failed.facts["cause"] == "request"
    assert "checkpoints" in failed.facts["error"]
    assert handles[0].done()
    assert handles[0].error is not None
    assert "checkpoint failed" in caplog.text


def test_a_policy_that_could_not_save_tries_again_at_its_next_time(make: Make) -> None:
    seen: list[str] = []

    def spoil(context: Any) -> None:
        if context.cycle == 0:
            block()
        elif context.cycle == 3:
            unblock()

    flow = loop(6, spoil, make=make, checkpoint=EveryN(2), observers=[lambda event: seen.append(event.kind)])
    flow.execute()

    assert cuts() == [4, 6]
    assert seen.count("checkpoint_failed") == 1


@pytest.mark.parametrize("mended", [False, True])
def test_a_session_says_why_its_last_save_failed_until_a_later_one_succeeds(make: Make, mended: bool) -> None:
    def ask(context: Any) -> None:
        if context.cycle == 0:
            block()
        elif mended:
            unblock()
        context.checkpoint()

    flow = loop(2, ask, make=make)
    flow.execute()

    error = flow.execution_context.last_save_error
    assert error is None if mended else "checkpoints" in str(error)


def test_with_on_save_failure_fail_a_failed_save_stops_the_run(make: Make) -> None:
    ran: list[int] = []

    def ask(context: Any) -> None:
        ran.append(context.cycle)
        if context.cycle == 1:
            block()
            context.checkpoint()

    flow = loop(5, ask, make=make, on_save_failure="fail")
    with pytest.raises(CheckpointError, match="checkpoints"):
        flow.execute()

    assert ran == [0, 1]
    context = flow.execution_context
    assert (context.status, context.steps) == ("paused", 2)
    assert "The checkpoint failed" in context.state.reason
    unblock()
    assert flow.execute() == 4  # the step itself was committed
    assert ran == [0, 1, 2, 3, 4]


def test_with_on_save_failure_fail_no_worker_goes_on(fleet: Fleet) -> None:
    Path("checkpoints").touch()
    handle = submitted(fleet, loop(5, checkpoint=EveryTask(), on_save_failure="fail"))

    status = fleet.work(handle)

    assert (status.status, status.steps) == ("paused", 1)
    assert status.reason.startswith("The checkpoint failed")
    unblock()
    handle.resume()
    assert fleet.work(handle).status == "completed"
    assert cuts() == [2, 3, 4, 5]


def once(kind: str, trouble: Callable[[], object]) -> Callable[[Event], None]:
    """An observer that makes trouble at the first event of that kind."""
    left = [trouble]
    return lambda event: left.pop()() if left and event.kind == kind else None


@pytest.mark.parametrize("moment", ["task_ended", "session_ended"])
def test_a_server_that_is_away_when_a_policy_is_due_or_the_result_is_read_does_not_end_the_run(
    own_redis: Callable[..., Server], key: str, moment: str
) -> None:
    """The moment is between a commit and the cut after it, or before the result is read."""
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    back = threading.Timer(0.3, server.start)

    def fails() -> None:
        server.kill()
        back.start()

    seen: list[str] = []
    observers = [once(moment, fails), lambda event: seen.append(event.kind)]
    flow = loop(3, make=in_redis(server.client()), checkpoint=EveryTask(), observers=observers)

    assert flow.execute() == 2
    assert cuts() == [1, 2, 3]
    assert "checkpoint_failed" not in seen


def test_a_policy_that_is_due_while_the_server_takes_no_writes_is_a_save_that_failed(
    own_redis: Callable[..., Server], key: str
) -> None:
    server = own_redis()

    def memory(limit: str) -> Callable[[], object]:
        return lambda: server.ask("CONFIG", "SET", "maxmemory", limit)

    seen: list[str] = []
    observers = [
        once("task_ended", memory("1")),
        once("checkpoint_failed", memory("0")),
        lambda event: seen.append(event.kind),
    ]
    flow = loop(3, make=in_redis(server.client()), checkpoint=EveryTask(), observers=observers)

    assert flow.execute() == 2
    assert cuts() == [2, 3]
    assert seen.count("checkpoint_failed") == 1


# --- a session in Redis of tomorrow's format, beside today's code -----------------------


REFUSED = rf"Session tomorrow .* has format {ROUNDS + 1}, which this graflow-ckpt does not know"


def of_tomorrow(mine: OwnFleet, **tables: dict[str, str]) -> dict[str, Any]:
    """Submit a session and give it tomorrow's format; all that is kept of it."""
    mine.submit(named("a"), session="tomorrow")
    mine.client.link.client.hset(f"{keys_of('tomorrow')}c", "format", ROUNDS + 1)
    return kept(mine)


def kept(mine: OwnFleet) -> dict[str, Any]:
    """Every key of the session, as the server dumps it; and that it is listed."""
    client: Any = mine.client.link.client
    found = {key: client.dump(key) for key in client.scan_iter(match=f"{keys_of('tomorrow')}*")}
    return {**found, "listed": client.zscore(SESSIONS, "tomorrow")}


def begun_on(mine: OwnFleet) -> None:
    """A slice that this machine lists; its process is gone, and its lease is over."""
    client: Any = mine.client.link.client
    prefix = keys_of("tomorrow")
    (token,) = (name.decode() for name in client.zrange(f"{prefix}tok", 0, -1))
    client.hset(f"{prefix}own", token, "{}\x1e*")
    client.zadd(f"{prefix}tok", {token: 0})
    client.hset(host_key(place()), f"tomorrow {token}", "{}")


def sweep(client: Client) -> None:
    sweeper = FleetRepair(Hands(client.link, client.carrier), place())
    sweeper.here()
    sweeper.round()
    sweeper.tidy()


ASKED: dict[str, Callable[[Client], object]] = {
    "status": lambda c: c.session("tomorrow").status(),
    "pause": lambda c: c.session("tomorrow").pause(),
    "cancel": lambda c: c.session("tomorrow").cancel(),
    "resume": lambda c: c.session("tomorrow").resume(),
    "purge": lambda c: c.session("tomorrow").purge(),
    "value": lambda c: c.session("tomorrow").value("a.__result__"),
    "pending": lambda c: c.session("tomorrow").pending(),
    "checkpoint": lambda c: c.session("tomorrow").checkpoint(),
    "declined": lambda c: c.session("tomorrow").declined(),
    "state": lambda c: read_state(c.link, "tomorrow", OPAQUE),
    "pages": lambda c: read_paged(c.link, "tomorrow", OPAQUE),
    "freeze": lambda c: frozen(c.link, "tomorrow").__enter__(),
    "commit": lambda c: RedisSession(c.link, "tomorrow", OPAQUE).commit([("claim", 0)]),
    "start": lambda c: c.link.script(START)([f"{keys_of('tomorrow')}c"], ["", "o", 1000, ""]),
    "reap": lambda c: release_the_dead(c.link, "tomorrow", OPAQUE),
}


@pytest.mark.parametrize("what", ASKED)
def test_whoever_asks_is_refused_by_name_and_nothing_is_changed(mine: OwnFleet, what: str) -> None:
    of_tomorrow(mine)
    begun_on(mine)
    before = kept(mine)

    with pytest.raises(SchemaUnsupported, match=REFUSED) as refused:
        ASKED[what](mine.client)

    assert "Upgrade graflow-ckpt here" in refused.value.hint
    assert (refused.value.session, refused.value.version) == ("tomorrow", str(ROUNDS + 1))
    assert kept(mine) == before


def test_a_session_whose_counters_are_elsewhere_is_refused_too(mine: OwnFleet) -> None:
    of_tomorrow(mine)
    mine.client.link.client.hdel(f"{keys_of('tomorrow')}c", "c")
    before = kept(mine)

    with pytest.raises(SchemaUnsupported, match=REFUSED):
        mine.client.session("tomorrow").status()
    sweep(mine.client)

    assert kept(mine) == before


def test_it_is_listed_beside_the_others(mine: OwnFleet) -> None:
    of_tomorrow(mine)
    mine.submit(named("b"), session="today")

    listed = {
        status.session: (status.status, status.reason)
        for status in read_all(mine.client.link, mine.client.sessions())
    }

    assert listed["today"][0] == "running"
    assert listed["tomorrow"][0] == "unknown"
    assert f"has format {ROUNDS + 1}" in listed["tomorrow"][1]


def test_a_steward_leaves_it_to_those_that_know_it(mine: OwnFleet) -> None:
    of_tomorrow(mine)
    begun_on(mine)
    before, listed = kept(mine), mine.client.link.client.hgetall(host_key(place()))

    sweep(mine.client)

    assert kept(mine) == before
    assert mine.client.link.client.hgetall(host_key(place())) == listed
    assert mine.client.link.client.zscore(ACTIVE, "tomorrow") is not None


def number(mine: OwnFleet, session: str) -> bytes:
    client: Any = mine.client.link.client
    found: bytes = client.hget(f"{keys_of(session)}c", "format")
    return found


def test_a_new_session_is_of_the_format_whose_workers_note_what_they_make(mine: OwnFleet) -> None:
    mine.submit(named("a"), session="today")

    assert number(mine, "today") == b"3" == b"%d" % FORMAT


def test_a_session_of_the_oldest_format_is_worked_at_and_stays_one(mine: OwnFleet) -> None:
    session = mine.submit(named("a"), session="yesterday")
    mine.client.link.client.hset(f"{keys_of('yesterday')}c", "format", OLDEST)

    with mine.pool(n=1):
        assert session.wait(30).status == "completed", mine.said

    assert number(mine, "yesterday") == b"2"


@pytest.mark.parametrize("said", ["1", "02", "2.0", "", "3 ", "x"])
def test_another_format_is_refused_by_scripts_and_readers_alike(mine: OwnFleet, said: str) -> None:
    of_tomorrow(mine)
    mine.client.link.client.hset(f"{keys_of('tomorrow')}c", "format", said)

    for what in ("commit", "status", "pages"):
        with pytest.raises(SchemaUnsupported, match="which this graflow-ckpt does not know"):
            ASKED[what](mine.client)


def test_a_worker_declines_it_by_name_and_runs_the_others(mine: OwnFleet) -> None:
    before = of_tomorrow(mine)
    today = mine.submit(named("b"), session="today")

    with mine.pool(n=2):
        assert today.wait(30).status == "completed", mine.said
        assert comes(lambda: "session tomorrow is left to other workers" in mine.said), mine.said

    assert "Traceback" not in mine.said
    assert kept(mine) == before
    mine.client.link.client.hset(f"{keys_of('tomorrow')}c", "format", FORMAT)
    with mine.pool(n=1):
        assert mine.client.session("tomorrow").wait(30).status == "completed", mine.said

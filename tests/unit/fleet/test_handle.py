"""A session of a fleet from outside: what a handle says and does, how far it is, who lacks its program."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from graflow_ckpt import task
from graflow_ckpt.checkpoint.program.plan import PlanRow
from graflow_ckpt.core.errors import GraphError, InDoubt, NoSession, SessionError, SessionExists, TaskError
from graflow_ckpt.core.facts import Claim
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Options, Task
from graflow_ckpt.engine.announcer import Account
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet import declining
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.declining import Declining, declined, forget
from graflow_ckpt.fleet.handle import Handle, doubts
from graflow_ckpt.fleet.programs import ProgramDiffers, ProgramMissing
from graflow_ckpt.fleet.status import Failure, Status, failures, read, read_all
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from tests.unit.fleet.played import Player, bag, set_status


def test_what_was_purged_is_gone_and_a_late_commit_does_not_bring_any_of_it_back(client: Client) -> None:
    handle = bag(client, "s")
    player = Player(client, "s")
    claim = player.claim()

    handle.purge()

    with pytest.raises(NoSession):
        player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])
    player.close()
    redis: Any = client.link.client
    assert list(redis.scan_iter(match=f"{keys_of('s')}*")) == []
    assert client.sessions() == []


def test_a_submission_while_one_of_that_id_is_purged_is_refused_or_whole(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = bag(client, "s")
    redis: Any = client.link.client
    scan, refused = redis.scan_iter, list[SessionExists]()

    def submitting(**options: Any) -> Iterator[bytes]:
        try:
            bag(client, "s")
        except SessionExists as error:
            refused.append(error)
        yield from scan(**options)

    monkeypatch.setattr(redis, "scan_iter", submitting)

    handle.purge()

    if refused:
        bag(client, "s")
    assert (handle.status().status, handle.status().ready) == ("running", 3)
    assert client.sessions() == ["s"]


def test_what_comes_while_a_session_is_purged_is_purged(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = bag(client, "s")
    redis: Any = client.link.client
    player, scan = Player(client, "s"), redis.scan_iter

    def working(**options: Any) -> Iterator[bytes]:
        yield from [*scan(**options)]
        player.session.commit([("append", "late", b"\x01"), ("enqueue", "a", None, 0, 0, "late", "direct")])

    monkeypatch.setattr(redis, "scan_iter", working)

    handle.purge()

    monkeypatch.undo()
    player.close()
    assert [*redis.scan_iter(match=f"{keys_of('s')}[!x]*")] == []


def test_a_wrong_word_for_a_path_or_a_time_is_refused_by_its_name(client: Client) -> None:
    handle = bag(client, "s")
    wrong: Any = "5s"

    with pytest.raises(GraphError, match="timeout: '5s' is not a number of seconds"):
        handle.wait(wrong)
    with pytest.raises(GraphError, match="path: '' is not the path"):
        handle.checkpoint(path="")


def test_a_session_that_was_paused_while_its_last_task_ran_is_completed_when_it_goes_on(
    client: Client,
) -> None:
    handle = bag(client, "s", tasks=1)
    player = Player(client, "s")
    claim = player.claim()
    handle.pause()
    player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])
    player.close()
    assert handle.status().status == "paused"

    handle.resume()

    assert handle.status().status == "completed"


@pytest.mark.parametrize("status", ["failed", "stopped", "paused", "running"])
def test_a_session_that_is_cancelled_while_it_is_resumed_stays_cancelled(
    client: Client, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = bag(client, "s")
    set_status(client, "s", status)
    look = declining.forget

    def while_cancelled(*args: Any) -> None:
        look(*args)
        client.session("s").cancel("no more")

    monkeypatch.setattr(declining, "forget", while_cancelled)
    with pytest.raises(SessionError, match="Session s is cancelled: it cannot go on"):
        handle.resume(max_steps=None if status == "paused" else 9)

    assert (handle.status().status, handle.status().reason) == ("cancelled", "no more")


def test_a_session_that_has_completed_is_not_cancelled_and_keeps_its_results(client: Client) -> None:
    handle = bag(client, "s")
    set_status(client, "s", "completed")

    with pytest.raises(SessionError, match="Session s is completed: it cannot be cancelled"):
        handle.cancel()

    assert handle.status().status == "completed"


def test_a_session_that_goes_on_at_its_limit_stops_there(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    player = Player(client, "s")
    first = player.claim()
    (second,) = player.session.commit(
        [("end", first.spec.key, first.number, "completed", b"\x01"), ("claim", 1)]
    )
    player.session.commit(
        [("end", second.spec.key, second.number, "failed", "x"), ("status", "failing", "x"), ("claim", 0)]
    )
    player.close()
    assert handle.status().status == "failed"

    handle.resume(max_steps=1)
    assert (handle.status().status, handle.status().reason) == ("stopped", "max_steps=1 reached")
    handle.resume(max_steps=3)

    assert (handle.status().status, handle.status().tokens) == ("running", 1)


def test_the_sessions_of_lately_are_those_that_are_looked_at_and_the_newest(client: Client) -> None:
    for name in ("one", "two", "three"):
        bag(client, name)
    redis: Any = client.link.client
    redis.zadd("graflow:sessions", {"one": 1, "two": 2, "three": 3})
    redis.zrem("graflow:active", "two", "three")

    assert client.sessions() == ["three", "two", "one"]
    assert client.lately(1) == ["one", "three"]


def test_a_failure_s_command_is_told_apart_from_what_the_task_has_said(client: Client) -> None:
    handle = bag(client, "s")
    status = replace(handle.status(), status="failed")

    assert str(handle.error(status)).endswith(" (see: graflow-ckpt failed list --session s)")


def paused(client: Client, *in_doubt: str) -> Handle:
    """A session of three of which these are set aside, in doubt."""
    handle = bag(client, "s", on_interrupted="ask")
    player = Player(client, "s")
    for _ in range(3):
        claim = player.claim()
        if claim.spec.task_id in in_doubt:
            player.session.commit([("doubt", claim.spec.key, 1)])
            claim = player.claim()
            player.session.commit([("quarantine", claim.spec.key, "InDoubt: its worker died")])
            if handle.status().status == "paused":
                handle._commit([("status", "running", ""), ("claim", 0)])
        else:
            player.session.commit([("release", claim.spec.key, 0)])
    player.close()
    handle.pause()
    return handle


def strategies(handle: Handle) -> dict[str, str]:
    return {spec["task_id"]: spec["execution_strategy"] for spec in handle.pending()}


def test_the_error_of_a_session_that_waits_is_none_of_a_task(client: Client) -> None:
    error = paused(client, "t0").error()

    assert isinstance(error, SessionError)
    assert not isinstance(error, TaskError)


def test_who_goes_on_without_an_answer_is_told_what_lacks_one(client: Client) -> None:
    handle = paused(client, "t0")

    with pytest.raises(InDoubt) as caught:
        handle.resume()

    assert caught.value.tasks == ["t0"]
    assert list(doubts(client.link, "s")) == ["t0"]
    assert handle.status().status == "paused"


@pytest.mark.parametrize(("answer", "how"), [("rerun", "direct"), ("skip", "left"), ("fail", "failed")])
def test_an_answer_schedules_the_task_and_the_session_goes_on(client: Client, answer: str, how: str) -> None:
    handle = paused(client, "t0")

    handle.resume(answers={"t0": answer})

    status = handle.status()
    assert (status.status, status.failed) == ("running", 0)
    assert strategies(handle)["t0"] == how


def test_a_task_that_is_not_in_doubt_takes_no_answer(client: Client) -> None:
    handle = paused(client, "t0")

    with pytest.raises(SessionError, match="'t1' of session s does not wait for an answer") as caught:
        handle.resume(answers={"t0": "skip", "t1": "skip"})

    assert caught.value.hint == "Those do: t0."
    assert strategies(handle)["t0"] == "doubt"


# --- how far sessions are -------------------------------------------------------------


@task(queue="gpu", max_retries=0)
def double(number: int) -> int:
    return 2 * number


def submitted(client: Client, session: str, calls: int) -> None:
    client.submit_calls(double, [((n,), {}) for n in range(calls)], Terms(session))


@pytest.fixture
def slice_(client: Client, redis: Any) -> RedisSession:
    """A slice of a bag of three, on its first token."""
    submitted(client, "s", 3)
    player = Player(client, "s", token=redis.hget(f"{keys_of('s')}qt", "gpu").decode())
    return player.session


def ended(session: RedisSession, claim: Claim, *how: object) -> list[Claim]:
    return session.commit([("end", claim.spec.key, claim.number, *how), ("claim", 1)])


def status(client: Client, session: str) -> Status:
    found = read(client.link, session)
    assert found is not None
    return found


def test_a_new_session_has_everything_ready_in_its_queue(client: Client) -> None:
    submitted(client, "new", 3)

    found = status(client, "new")

    assert (found.session, found.workflow, found.status) == ("new", "double", "running")
    assert (found.ready, found.running, found.completed, found.failed) == (3, 0, 0, 0)
    assert (found.queues, found.slices) == ((("gpu", 3),), ())
    assert (found.calls, found.tasks, found.tokens, found.ended, found.over) == (3, 3, 1, None, False)


def test_what_runs_is_done_and_has_failed_is_counted(client: Client, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])
    (claim,) = ended(slice_, claim, "completed", b"\x01")

    ended(slice_, claim, "lost", "ValueError: no")

    found = status(client, "s")
    assert (found.steps, found.completed, found.failed, found.running, found.ready) == (1, 1, 1, 1, 0)
    assert found.slices == (("gpu", 1),)


def test_the_end_has_its_time_and_the_first_line_of_its_reason(client: Client) -> None:
    submitted(client, "s", 1)

    client.session("s").cancel("enough\nof it")

    found = status(client, "s")
    assert (found.status, found.reason, found.over) == ("cancelled", "enough", True)
    assert found.ended is not None
    assert found.ended >= found.created > 0


def test_sessions_that_are_not_there_are_left_out(client: Client) -> None:
    for name in ("one", "two"):
        submitted(client, name, 1)

    assert read(client.link, "none") is None
    assert [found.session for found in read_all(client.link, ["two", "none", "one"])] == ["two", "one"]


def test_of_a_graph_it_is_known_how_many_tasks_there_are(client: Client) -> None:
    graph = TaskGraph()
    for name in ("first", "second"):
        graph.add(Task(name, double.func, Options()))
    graph.add_edge("first", "second")

    client.submit(graph, Settings(workflow="pair"), ("first",), {"number": 1}, Terms("s"))

    found = status(client, "s")
    assert (found.workflow, found.tasks, found.calls, found.ready) == ("pair", 2, None, 1)


# --- failures ---------------------------------------------------------------------------


ERROR = Account("ValueError", "no such row: 7\nof nine", "Traceback (most recent call last):\n  …\n").text


@pytest.fixture
def link(client: Client) -> RedisLink:
    return client.link


def only(link: RedisLink) -> Failure:
    (found,) = failures(link, "s")
    return found


def test_without_a_failure_there_is_none(link: RedisLink, slice_: RedisSession) -> None:
    assert list(failures(link, "s")) == []
    assert list(failures(link, "nothing")) == []


def test_an_error_is_type_message_and_traceback(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])

    ended(slice_, claim, "lost", ERROR)

    found = only(link)
    assert (found.task, found.type, found.message) == ("double[0]", "ValueError", "no such row: 7\nof nine")
    assert found.traceback.startswith("Traceback")
    assert (found.attempts, found.queue, found.set_aside) == (None, None, False)


def test_what_is_to_be_retried_has_not_failed(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])

    ended(slice_, claim, "retry", 0.0, ERROR)

    assert list(failures(link, "s")) == []


def test_what_is_set_aside_has_its_attempts_and_its_queue(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])
    ended(slice_, claim, "retry", 0.0, ERROR)
    claims = slice_.commit([("claim", 3)])
    again = next(claim for claim in claims if claim.spec.retry_count)

    ended(slice_, again, "failed", ERROR)

    found = only(link)
    assert (found.attempts, found.crashes, found.queue, found.set_aside) == (2, 0, "gpu", True)


def test_an_error_that_is_no_exception_is_its_own_message(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])

    ended(slice_, claim, "lost", "it did not: work")

    found = only(link)
    assert (found.type, found.message, found.traceback) == ("", "it did not: work", "")


# --- workers that lack a session's program --------------------------------------------


HOST = platform.node()
MISSING = ProgramMissing("This worker has no module 'flows', which workflow 's' uses.")


class Wrong:
    """A worker that lacks the program."""

    def __init__(self, client: Client, name: str, patience: float = 60.0) -> None:
        self._client = client
        self._declining = Declining(client.link, patience)
        self._declining._who = name

    def takes(self, error: Exception = MISSING) -> None:
        """The token that is posted, or that a steward would post."""
        token = "" if posted(self._client) else resting(self._client)[0]
        player = Player(self._client, "s", token=token)
        self._declining.decline(player.session, error)
        assert player.session.retired


def posted(client: Client) -> int:
    """How many tokens wait in RQ's queue."""
    return len(client.carrier.queue("default"))


def resting(client: Client) -> tuple[str, float]:
    """The token that waits for a steward, and for how many milliseconds."""
    redis: Any = client.link.client
    (found,) = redis.zrange(f"{keys_of('s')}tok", 0, -1, withscores=True)
    seconds, micros = redis.time()
    return found[0].decode(), found[1] - seconds * 1000 - micros / 1000


def noted_at(client: Client, seconds_ago: float) -> None:
    redis: Any = client.link.client
    redis.hset(f"{keys_of('s')}h", "declined", int((redis.time()[0] - seconds_ago) * 1000))


def cold(client: Client) -> set[str]:
    redis: Any = client.link.client
    return {name.decode() for name in redis.hkeys(f"{keys_of('s')}h") if name.startswith(b"decl")}


def test_the_next_who_waits_is_asked_at_once_and_when_all_were_asked_the_token_rests(client: Client) -> None:
    bag(client, "s")
    one, two = Wrong(client, "one"), Wrong(client, "two")

    one.takes()
    assert posted(client) == 1
    two.takes()
    assert posted(client) == 1
    redis: Any = client.link.client
    redis.zadd("graflow:active", {"s": 1e15})
    one.takes()

    assert posted(client) == 0
    assert 0 < resting(client)[1] <= 50
    assert redis.zscore("graflow:active", "s") <= redis.time()[0] * 1000 + 1100  # a steward looks then


def test_what_is_lacking_may_have_a_name_that_is_no_text(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "graflow_ckpt.fleet")  # reports of tests cannot hold it
    bag(client, "s")

    Wrong(client, "one").takes(ProgramMissing("There is no file 'caf\udce9'."))

    assert list(declined(client.link, "s").values()) == ["There is no file 'caf\\udce9'."]


def test_a_token_rests_for_longer_each_time_and_at_most_for_a_second(client: Client) -> None:
    bag(client, "s")
    one = Wrong(client, "one")
    one.takes()

    rests = []
    one.takes()
    for _ in range(7):
        rests.append(resting(client)[1])
        one.takes()  # asked, for the first time in this round
        one.takes()

    assert rests[0] <= 50 < rests[1] <= 100 < rests[2] <= 200
    assert max(rests) <= 1000


def test_nothing_of_the_session_is_used_up(client: Client) -> None:
    handle = bag(client, "s", max_retries=2)
    before = handle.pending()

    for _ in range(5):
        Wrong(client, "one").takes()
        Wrong(client, "two").takes()

    assert handle.pending() == before
    assert (handle.status().status, handle.status().failed, handle.failures()) == ("running", 0, {})


def test_who_lacks_what_is_known_until_somebody_has_it(client: Client) -> None:
    handle = bag(client, "s")
    Wrong(client, "one").takes()

    assert handle.declined() == {HOST: MISSING.message}
    assert cold(client) == {"declined", "decliners", f"declined:{HOST}"}

    forget(client.link, "s")
    assert handle.declined() == {}
    assert cold(client) == set()


def test_after_its_patience_the_session_pauses_and_says_who_lacks_what(client: Client, redis: Any) -> None:
    handle = bag(client, "s")
    redis.hset(f"{keys_of('s')}h", "declined:elsewhere", "no module 'other'")
    Wrong(client, "one").takes()
    noted_at(client, 61)

    Wrong(client, "two").takes()

    assert handle.status().status == "paused"
    first, second = handle.reason().splitlines()
    assert first.startswith("no worker has had its program for 6")
    assert first.endswith(f"s; {HOST}: {MISSING.message}")
    assert second == "elsewhere: no module 'other'"
    assert posted(client) == 0
    assert handle.declined()[HOST] == MISSING.message  # to be looked at, while it waits for somebody


def test_the_plan_has_the_state_of_each_task(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    player = Player(client, "s")
    first = player.claim()
    end = ("end", first.spec.key, first.number, "completed", b"\x01")
    player.session.commit([end, ("claim", 0)], mode="q")
    player.close()
    differs = ProgramDiffers(
        "Another version.", table=[PlanRow(n, "changed", "") for n in ("t0", "t1", "later")]
    )
    Wrong(client, "one").takes(differs)
    noted_at(client, 61)

    Wrong(client, "two").takes(differs)

    assert [line.split() for line in handle.reason().splitlines()[1:]] == [
        ["task", "verdict", "state", "note"],
        ["t0", "changed", "completed"],
        ["t1", "changed", "pending"],
        ["later", "changed", "unreached"],
    ]


def test_who_goes_on_after_a_pause_is_not_paused_again_at_once(client: Client) -> None:
    handle = bag(client, "s")
    Wrong(client, "one").takes()
    noted_at(client, 61)
    Wrong(client, "one").takes()
    assert handle.status().status == "paused"

    handle._commit([("status", "running", ""), ("claim", 0)])  # as a process does that takes part
    Wrong(client, "one").takes()

    assert handle.status().status == "running"


def test_no_session_is_paused_that_somebody_works_on(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    Wrong(client, "one").takes()
    player = Player(client, "s")
    player.claim()
    player.session.commit([("claim", 0)], mode="s")  # its keeper asks for another worker
    noted_at(client, 61)

    Wrong(client, "two").takes()

    assert handle.status().status == "running"
    assert handle.declined() == {}  # nobody is waited for


def test_who_has_just_begun_may_be_about_to_decline_too(client: Client, redis: Any) -> None:
    handle = bag(client, "s", tasks=3)
    Wrong(client, "one").takes()
    Player(client, "s")  # and has committed nothing
    redis.hdel(f"{keys_of('s')}qt", "default")
    client.session("s")._commit([("claim", 0)])  # another token
    noted_at(client, 61)

    Wrong(client, "two").takes()

    assert handle.status().status == "paused"


def test_of_a_session_that_is_over_nothing_is_lacking(client: Client) -> None:
    handle = bag(client, "s")
    Wrong(client, "one").takes()

    handle.cancel()

    assert handle.declined() == {}
    assert declined(client.link, "none") == {}


def test_it_is_said_once_in_a_while(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    bag(client, "s")
    one = Wrong(client, "one")

    for _ in range(3):
        one.takes()

    assert [r.message for r in caplog.records] == [f"session s is left to other workers: {MISSING.message}"]

"""Scenes: what may happen to tokens, one thing at a time. Each is given a new crew."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction, signature
from typing import Any

import pytest

from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.unit.sessions.crew import LEASE, Crew, Worker
from tests.unit.sessions.pair import SESSION

PREFIX = keys_of(SESSION)

Stage = Callable[..., Crew]  # the arguments of a Crew but for its link and scripts


def working(crew: Crew, slots: int = 1) -> Worker:
    worker = crew.begin(slots=slots)
    assert worker is not None
    return worker


def a_token_is_given_to_one_owner(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    token, queue = crew.rq[0]

    began = crew.start(token, "one")
    assert began[:3] == [b"running", token.encode(), queue.encode()]
    assert crew.start(token, "two") == [b"fenced"]
    assert crew.start(token, "one") == began  # its reply was lost
    crew.commit(crew.sender(token, queue, began[3].decode()), [("claim", 1)])
    assert crew.start(token, "one") == [b"fenced"]  # the same job once more, in the same process


def a_token_that_nobody_has_begun_on_claims_nothing(stage: Stage) -> None:
    crew = stage()
    crew.submit()

    with pytest.raises(Fenced):
        crew.commit(crew.sender(crew.rq[0][0], "default"), [("claim", 1)])

    assert crew.peek().claims == {}


def claims_that_a_lost_reply_held_are_found(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    crew.submit()
    worker = working(crew)
    worker.alive = False
    crew.end(worker, "completed", b"\x01")  # the second task is claimed, and nobody hears of it
    worker.alive = True

    crew.quit(worker)

    found = crew.peek()
    assert list(found.claims.values()) == [worker.token]
    assert found.leases == {worker.token: 0.0}  # to be reaped at once
    crew.sweep()
    crew.check()
    assert crew.peek().claims == {}
    working(crew)


def the_living_are_not_reaped(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    worker = working(crew)

    with pytest.raises(Fenced):
        crew.reap(worker.token)
    with pytest.raises(Fenced):
        crew.reap("e1t1")  # who is that?
    crew.end(worker, "completed", b"\x01")

    assert crew.peek().status == "completed"


def the_dead_are_reaped_before_their_lease_is_over(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    worker = working(crew)

    crew.reap(worker.token, forced=True)

    crew.check()
    with pytest.raises(Fenced):
        crew.commit(worker.session, [("claim", 1)])
    assert working(crew).held[0].spec.crashes == 1


def a_lease_that_is_renewed_is_not_over(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    worker = working(crew)
    crew.now += LEASE - 1
    crew.renew()
    crew.now += 2

    with pytest.raises(Fenced):
        crew.reap(worker.token)


def a_lease_that_is_found_over_can_be_renewed_before_it_is_taken(stage: Stage) -> None:
    """The server was away, say, and its worker is about to come back."""
    crew = stage()
    crew.submit()
    worker = working(crew)
    crew.now += LEASE + 1
    for later in (0, 1, 30):  # after so long the server may have been away again
        crew.now += later
        with pytest.raises(Fenced):
            crew.reap(worker.token, grace=2)
    crew.now += 1
    crew.renew()
    crew.now += LEASE - 1

    with pytest.raises(Fenced):
        crew.reap(worker.token, grace=2)
    crew.now += 2
    with pytest.raises(Fenced):  # it is over once more
        crew.reap(worker.token, grace=2)
    crew.end(worker, "completed", b"\x01")

    assert crew.peek().status == "completed"


def a_lease_that_is_not_renewed_in_its_grace_is_taken(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    worker = working(crew)
    crew.now += LEASE + 1
    with pytest.raises(Fenced):
        crew.reap(worker.token, grace=2)
    crew.now += 3

    crew.reap(worker.token, grace=2)

    crew.check()
    assert worker.token not in crew.peek().leases


def what_was_left_with_claims_gets_no_grace(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    crew.submit()
    worker = working(crew)
    worker.alive = False
    crew.end(worker, "completed", b"\x01")
    worker.alive = True
    crew.quit(worker)

    crew.reap(worker.token, grace=2)

    crew.check()
    assert crew.peek().claims == {}


def a_token_that_is_lost_is_made_anew(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    (lost, _) = crew.rq.pop()
    crew.now += 60

    crew.reap(lost)

    assert [queue for _, queue in crew.rq] == ["default"]
    assert crew.start(lost, "late") == [b"fenced"]
    working(crew)


def one_is_called_where_work_waits(stage: Stage) -> None:
    crew = stage()
    for queue in ("default", "default", "gpu"):
        crew.submit(queue)

    assert [queue for _, queue in crew.rq] == ["default", "gpu"]
    worker = working(crew)
    crew.end(worker, "retry", 0.0, "E: no")  # it goes on, and sees to its queue
    assert [queue for _, queue in crew.rq] == ["gpu"]
    crew.tell(mode="s")
    crew.tell(mode="s")  # one is called already
    assert [queue for _, queue in crew.rq] == ["gpu", "default"]


def a_slice_calls_for_other_queues_and_sees_to_its_own(stage: Stage) -> None:
    crew = stage()
    for _ in range(3):
        crew.submit()
    worker = working(crew)

    crew.end(worker, "completed", b"\x01", more=[("enqueue", *crew.spec("gpu"))])

    assert [queue for _, queue in crew.rq] == ["gpu"]
    assert crew.peek().ready == {"default": ["t3"], "gpu": ["t4"]}


def a_slice_calls_for_help(stage: Stage) -> None:
    crew = stage()
    for _ in range(3):
        crew.submit()
    worker = working(crew)
    worker.session.help_after = 0.0  # since long ago

    crew.end(worker, "retry", 0.0, "E: no")

    assert [queue for _, queue in crew.rq] == ["default"]


def one_is_called_for_what_another_waits_with(stage: Stage) -> None:
    crew = stage()
    crew.submit("gpu", due=crew.now + 1)
    crew.submit()
    crew.submit()
    worker = working(crew)
    crew.now += 2

    crew.end(worker, "completed", b"\x01")  # it comes by, and what is due is for others

    assert [queue for _, queue in crew.rq] == ["gpu"]


def one_is_called_for_what_became_free(stage: Stage) -> None:
    crew = stage()
    crew.tell(("cap", 2))
    for _ in range(3):
        crew.submit()
    worker = working(crew, slots=2)
    crew.submit("gpu")
    assert crew.rq == []  # as many run as may

    ends = [("end", claim.spec.key, claim.number, "completed", b"\x01") for claim in worker.held]
    worker.held.clear()
    crew.work(worker, ends, limit=1)

    assert [queue for _, queue in crew.rq] == ["gpu"]


def nobody_is_called_for_a_step_too_many(stage: Stage) -> None:
    crew = stage()
    crew.tell(("reopen", 1, 1))
    crew.submit()
    worker = working(crew)
    crew.submit()
    assert crew.rq == []
    crew.tell(("enqueue", "group", None, 0, 0, "gpu", "pass"))
    assert [queue for _, queue in crew.rq] == ["gpu"]  # what has no body is no step

    other = working(crew)
    crew.end(other, "passed")
    crew.end(worker, "completed", b"\x01")

    assert crew.peek().status == "stopped"
    crew.check()


def nobody_is_called_where_there_is_no_fleet(stage: Stage) -> None:
    crew = stage(flags="")
    crew.submit()

    assert crew.rq == []
    assert crew.peek().leases == {}


def a_session_that_is_being_written_waits(stage: Stage) -> None:
    crew = stage(status="init")
    crew.tell(("enqueue", *crew.spec("default")), ("claim", 0))
    crew.check()
    assert crew.rq == []

    crew.tell(("status", "running", ""))

    crew.check()
    working(crew)


def a_session_begins_once(stage: Stage) -> None:
    crew = stage()
    crew.tell(("enqueue", *crew.spec("default")), mode="B")
    crew.outside.commit([("enqueue", *crew.spec("default"))], "B")

    assert crew.peek().ready == {"default": ["t1"]}


def a_session_that_ends_takes_its_tokens_with_it(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    crew.submit("gpu")
    (_, (waiting, queue)) = crew.rq
    worker = working(crew)
    crew.tell(("status", "cancelled", "enough"))
    assert worker.token in crew.peek().leases  # somebody is still at work

    crew.end(worker, "completed", b"\x01")

    crew.check()
    assert crew.peek().over
    assert crew.start(waiting, "late") == [b"fenced"]
    assert crew.start("", "new") == [b"fenced"]
    with pytest.raises(Fenced):
        crew.commit(crew.sender(waiting, queue), [("claim", 1)])


def who_was_about_to_claim_when_it_ended_claims_nothing_afterwards(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    token, queue = crew.rq[0]
    crew.start(token, "slow")  # and then it sleeps
    crew.tell(("status", "failing", "enough"), ("claim", 0))
    crew.tell(("reopen", 2, None))

    with pytest.raises(Fenced):
        crew.commit(crew.sender(token, queue), [("claim", 1)])

    crew.check()
    assert crew.peek().claims == {}


def all_that_there_is_expires(stage: Stage) -> None:
    crew = stage(flags="fl")
    crew.tell(*[("enqueue", *crew.spec(queue)) for queue in ("default", "gpu") * 4])
    crew.tell(("later", *crew.spec("gpu"), crew.now + 9), ("expect", "join", 1, 2, 0), ("skipped", "cut off"))
    crew.tell(("put", "x", b"\x01", -1), ("append", "y", b"\x01"), ("task", "made", b"\x01"), ("cap", 9))
    worker = working(crew, slots=3)
    for how in (("completed", b"\x01"), ("failed", "E: no"), ("passed",)):
        crew.end(worker, *how, limit=0)
    crew.check()
    crew.tell(("status", "failing", ""), ("claim", 0))
    crew.check()
    crew.tell(("append", "later", b"\x01"), ("put", "z", b"\x01", -1), ("enqueue", *crew.spec("q-3")))
    crew.check()

    every = {key.rpartition("}:")[2] for key in crew.peek().lifetimes}
    lists, queues = {"a:y", "a:later", "ledger"}, {"q:default", "q:gpu", "q:q-3"}
    assert every == {*"chgnvt", "dl", "dead", "done", "sk", "pa", "er"} | lists | queues

    crew.tell(("reopen", 2, None))
    crew.check()
    assert crew.peek().status == "running"


def each_end_leaves_one_line(stage: Stage) -> None:
    crew = stage(flags="fl")
    crew.submit()
    crew.submit()
    worker = working(crew)  # t2, which has the higher priority
    token = worker.token
    crew.end(worker, "retry", 0.0, "E: no")
    crew.end(worker, "completed", b"\x01")
    worker.session.send_again()
    crew.end(worker, "failed", "E: no")

    ledger: Any = crew.link.client.lrange(f"{PREFIX}ledger", 0, -1)
    lines = [line.decode().split("\x1f") for line in ledger]
    assert [line[1:] for line in lines] == [
        ["0", "t2", "0", "2", "retry", token],  # steps, task, cycle, key, how, who
        ["1", "t2", "0", "2", "completed", token],
        ["1", "t1", "0", "1", "failed", token],
    ]
    sequences = [int(line[0]) for line in lines]
    assert sequences == sorted(set(sequences))


def what_was_answered_is_answered_again(stage: Stage) -> None:
    crew = stage()
    crew.submit()
    worker = working(crew)
    session = worker.session
    assert session.send_again() == session.reply  # a claim

    crew.end(worker, "completed", b"\x01")

    assert session.reply[3] == b"retired"
    reopened = session.reply
    assert crew.sender(session.token).retired is False
    again = Crew.sender(crew, session.token)
    again.sent = session.sent
    again.read_all([])  # opens its wire
    assert again.send_again() == reopened
    assert crew.peek().line["steps"] == "1"


def a_zombie_hears_what_became_of_its_last_commit_and_nothing_else(stage: Stage) -> None:
    crew = stage()
    for _ in range(3):
        crew.submit()
    worker = working(crew)
    worker.alive = False
    crew.end(worker, "completed", b"\x01")
    crew.reap(worker.token, forced=True)

    said = worker.session.send_again()

    assert said[:2] == [b"running", 1]
    assert said[4:] == []  # what it was given then is another's
    with pytest.raises(Fenced):
        crew.commit(worker.session, [("claim", 1)])
    assert crew.peek().line["steps"] == "1"


SCENES = [each for each in [*vars().values()] if isfunction(each) and "stage" in signature(each).parameters]

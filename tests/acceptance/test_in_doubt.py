"""What was running when its process died: in a journal, in Redis, on a fleet; by real kills."""

from __future__ import annotations

import errno
import json
import logging
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, Workflow, task, workflow
from graflow_ckpt.core.errors import (
    GraphError,
    InDoubt,
    JournalDamaged,
    JournalFailed,
    SessionError,
)
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle, RemoteError
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.command_line import graflow, run, started, written
from tests.acceptance.elsewhere import Fleet, rob
from tests.acceptance.places import SAVES, Box, Seen, idle
from tests.loops import chain
from tests.servers import Server
from tests.unit.stores.faults import FaultyDisk

# argv: on_interrupted, the task that kills its process, then answers. With a PORT the session is in Redis.
PROGRAM = """
import os, signal, sys
from dataclasses import replace
import redis
from graflow_ckpt import ExecutionContext, task, workflow

on, *DEADLY = sys.argv[1:3]  # a list: what a program is compared by are constants
port = os.environ.get("PORT")

def body(name):
    with open("runs", "a") as runs:
        print(name, file=runs)
    if name in DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)

with workflow("w", **({} if port else {"session_id": "s", "durability": "journal"})) as flow:
    @task
    def first():
        body("first")
        return 1

    @task(inject_context=True, on_interrupted=on)
    def second(context, first):
        context.get_channel().set("half", first)
        body("second")
        print("attempt", context.attempt, context.idempotency_key)
        return 2

    @task
    def third(second=None):
        body("third")
        return f"after {second}"

    first >> second >> third

flow.settings = replace(flow.settings, in_doubt=tuple(tuple(a.split("=")) for a in sys.argv[3:]))
if port:
    flow = ExecutionContext.create(
        flow.graph, "first", session_id="s", queue_backend="redis", channel_backend="redis",
        config={"redis_client": redis.Redis(port=int(port))}, settings=flow.settings,
    )
print("result:", flow.execute())
"""

KILLED = -signal.SIGKILL
JOURNALED: dict[str, Any] = {"session_id": "s", "durability": "journal"}
Go = Callable[..., str]


@pytest.fixture
def program() -> Path:
    return written(PROGRAM)


def runs() -> list[str]:
    return Path("runs").read_text().split()


class Interrupted:
    """What holds wherever the session is: `go` runs the program and returns what it says."""

    died: str
    gives_up: str

    def test_with_rerun_the_task_runs_again_and_no_completed_one_does(self, go: Go) -> None:
        go("rerun", "second", status=KILLED)

        said = go("rerun")

        assert runs() == ["first", "second", "second", "third"]
        assert "attempt 2 s/second/0" in said
        assert "result: after 2" in said

    def test_with_skip_its_successors_go_on_without_it(self, go: Go) -> None:
        go("skip", "second", status=KILLED)

        assert "result: after None" in go("skip")
        assert runs() == ["first", "second", "third"]

    def test_with_fail_the_session_fails_by_name_and_the_next_run_tries_again(self, go: Go) -> None:
        go("fail", "second", status=KILLED)

        said = go("fail", status=1)

        assert f"second was running when its {self.died} died" in said
        assert runs() == ["first", "second"]
        assert "result: after 2" in go("fail")

    def test_with_ask_nothing_runs_until_there_is_an_answer(self, go: Go) -> None:
        go("ask", "second", status=KILLED)

        for _ in range(2):
            said = go("ask", status=1)

            assert "running when the process died: second" in said
            assert "--in-doubt" in said
        assert runs() == ["first", "second"]

    @pytest.mark.parametrize("asked", [False, True], ids=["known before", "asked for"])
    @pytest.mark.parametrize(
        ("answer", "result", "status"),
        [
            ("rerun", "result: after 2", 0),
            ("skip", "result: after None", 0),
            ("fail", "TaskError: WorkerDied: second was running", 1),
        ],
    )
    def test_an_answer_is_carried_out(
        self, go: Go, answer: str, result: str, status: int, asked: bool
    ) -> None:
        go("ask", "second", status=KILLED)
        if asked:
            go("ask", status=1)

        assert result in go("ask", "", f"second={answer}", status=status)

    def test_what_was_answered_with_fail_runs_at_the_next_resume(self, go: Go) -> None:
        go("ask", "second", status=KILLED)
        go("ask", "", "second=fail", status=1)

        assert "result: after 2" in go("ask")

    def test_a_task_that_takes_its_process_down_three_times_fails_by_name(self, go: Go) -> None:
        for _ in range(3):
            go("rerun", "second", status=KILLED)

        said = go("rerun", "second", status=1)

        assert self.gives_up in said
        assert runs().count("second") == 3


class TestJournal(Interrupted):
    died = "process"
    gives_up = "second was running when its process died (3 times)"

    @pytest.fixture
    def go(self, program: Path) -> Go:
        return lambda *words, status=0: run(program, *words, status=status)


class TestRedis(Interrupted):
    died = "worker"
    gives_up = "'second' has taken its worker down 3 times"

    @pytest.fixture
    def go(self, program: Path, redis_server: Server, redis_url: str, key: str) -> Go:
        return lambda *words, status=0: run(program, *words, status=status, PORT=str(redis_server.port))


# --- in this process -----------------------------------------------------------------------


def test_without_an_answer_the_error_has_the_tasks(program: Path) -> None:
    run(program, "ask", "second", status=KILLED)
    second = task(id="second", on_interrupted="ask")(lambda first: 2)

    with pytest.raises(InDoubt) as doubt:
        chain(*idle("first"), second, *idle("third"), **JOURNALED, changed="reuse").execute()

    assert doubt.value.tasks == ["second"]
    assert runs() == ["first", "second"]


def test_other_than_rerun_without_a_journal_is_refused_before_anything_runs() -> None:
    with pytest.raises(GraphError, match=r"'a' has on_interrupted='skip'.*durability='journal'"):
        chain(task(id="a", on_interrupted="skip")(lambda: 1)).execute()


def test_a_kill_of_a_stopped_process_loses_no_committed_step(program: Path) -> None:
    slow = program.with_name("slow.py")
    slow.write_text(
        PROGRAM.replace(
            'body("third")\n', 'body("third"); print("at work", flush=True); sys.stdin.readline()\n'
        )
    )
    with started(slow, "rerun") as process:
        process.hear("at work")
        process.signal(signal.SIGSTOP)
        process.signal(signal.SIGKILL)
        assert process.wait() == KILLED

    assert "result: after 2" in run(program, "rerun")
    assert runs() == ["first", "second", "third", "third"]


# --- the journal itself ----------------------------------------------------------------


def on_that(disk: FaultyDisk, turn: Any) -> Workflow:
    """A session of this task, whose store is on that disk."""
    return chain(turn, **JOURNALED, store=LocalStore("checkpoints", disk=disk))


@pytest.mark.parametrize("call", ["write_at", "sync_data"])
def test_a_journal_that_fails_stops_the_session_and_nothing_later_is_committed(call: str) -> None:
    ran: list[int] = []
    disk = FaultyDisk()

    def turn(context) -> None:
        ran.append(context.cycle)
        context.get_channel().append("log", context.cycle)
        if context.cycle == 2:
            disk.arm(call, errno.EIO)
        context.next_iteration()

    flow = on_that(disk, turn)
    with pytest.raises(JournalFailed, match="Input/output error"):
        flow.execute()
    assert ran == [0, 1, 2]
    with pytest.raises(JournalFailed):
        flow.execution_context.get_channel().set("later", 1)

    again = chain(turn=lambda context: context.get_channel().get("log"), **JOURNALED, changed="reuse")
    assert again.execution_context.steps == 2
    assert again.execute() == [0, 1]


def test_a_cut_that_a_journal_waits_for_and_that_fails_stops_the_session() -> None:
    disk = FaultyDisk()
    ran = []

    def turn(context) -> None:
        ran.append(context.cycle)
        if context.cycle == 1:
            disk.arm("rename", errno.ENOSPC)
            context.get_channel().set("big", bytes(2_000_000))
        context.next_iteration()

    with pytest.raises(Exception, match="No space left"):
        on_that(disk, turn).execute()

    assert ran == [0, 1]
    assert len(CheckpointManager.list_checkpoints("s")) == 1


def test_values_of_all_kinds_come_back_from_the_journal() -> None:
    def fill(context) -> Box:
        channel = context.get_channel()
        channel.set("plain", {"a": (1, 2.5, b"x")})
        channel.set("box", Box(1))
        channel.append("log", Box(2))
        return Box(3)

    def change(context, fill: Box) -> None:
        context.get_channel().get("box").items.append(fill.items[0])

    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chain(fill, change, dies, **JOURNALED).execute()

    context = workflow("w", **JOURNALED, changed="reuse").execution_context
    channel = context.get_channel()
    assert context.replayed == 3
    assert channel.get("plain") == {"a": (1, 2.5, b"x")}
    assert channel.get("box").items == [1, 3]
    assert [item.items for item in channel.get("log")] == [[2]]
    assert context.get_result("fill").items == [3]
    context.home.close()


# --- on a fleet ------------------------------------------------------------------------------

RAN: list[str] = []
fleet_of: list[Fleet] = []


@task
def before() -> int:
    RAN.append("before")
    return 1


def dying(name: str, on: Any) -> Any:
    """A task whose worker loses its token while it runs, the first time."""
    return task(id=name, on_interrupted=on)(partial(fall, name))


def fall(name: str) -> str:
    RAN.append(name)
    if RAN.count(name) == 1:
        fleet = fleet_of[0]
        handle = fleet.client.session("s")
        for token, queue in rob(fleet.client.link, handle._cells, "s"):
            fleet.client.post("s", token, queue)
    return name


asks, asks_too, skips, fails, reruns = (
    dying("asks", "ask"), dying("asks_too", "ask"), dying("skips", "skip"), dying("fails", "fail"),
    dying("reruns", "rerun"),
)  # fmt: skip


@task
def after() -> str:
    RAN.append("after")
    return "done"


@pytest.fixture
def fleet(redis_url: str, key: str, own_folder: Path) -> Iterator[Fleet]:
    RAN.clear()
    made = Fleet(redis_url, str(own_folder / "checkpoints"), budget=2.0)
    fleet_of[:] = [made]
    yield made
    made.close()


def submitted(fleet: Fleet, *members: Any) -> Handle:
    """A session of these, one after the other, or side by side in a tuple."""
    flow = chain(*members, after, workflow="doubt", session_id="s", max_parallel=1)
    return fleet.client.submit(flow.graph, flow.settings, tuple(flow.graph.roots()), {}, Terms("s"))


@pytest.mark.parametrize(
    ("member", "ran"),
    [(reruns, ["before", "reruns", "reruns", "after"]), (skips, ["before", "skips", "after"])],
    ids=["rerun", "skip"],
)
def test_a_fleet_goes_by_the_task(fleet: Fleet, member: Any, ran: list[str]) -> None:
    handle = submitted(fleet, before, member)

    assert fleet.work(handle).status == "completed"
    assert ran == RAN


def test_a_fleet_fails_what_is_to_fail_and_runs_it_when_the_session_goes_on(fleet: Fleet) -> None:
    handle = submitted(fleet, before, fails)
    assert fleet.work(handle).status == "failed"
    with pytest.raises(RemoteError, match="fails was running when its worker died"):
        handle.result(1)

    handle.resume()

    assert fleet.work(handle).status == "completed"
    assert RAN == ["before", "fails", "fails", "after"]


@pytest.mark.parametrize(
    ("answer", "ran", "status"),
    [
        ("rerun", ["before", "asks", "asks", "after"], "completed"),
        ("skip", ["before", "asks", "after"], "completed"),
        ("fail", ["before", "asks"], "failed"),
    ],
)
def test_a_fleet_waits_for_an_answer_and_carries_it_out(
    fleet: Fleet, answer: str, ran: list[str], status: str
) -> None:
    handle = submitted(fleet, before, asks)
    paused = fleet.work(handle)
    assert (paused.status, paused.tokens, paused.failed) == ("paused", 0, 1)
    assert "asks was running when its worker died" in paused.reason

    handle.answer("asks", answer)

    assert fleet.work(handle).status == status
    assert ran == RAN


def test_a_session_goes_on_when_the_last_question_is_answered(fleet: Fleet) -> None:
    handle = submitted(fleet, (asks, asks_too))
    assert fleet.work(handle).status == "paused"
    handle.answer("asks", "rerun")
    assert fleet.work(handle).status == "paused"  # the other one runs then, and dies as well
    assert RAN == ["asks", "asks", "asks_too"]

    with pytest.raises(InDoubt) as doubt:
        handle.resume()
    handle.answer("asks_too", "skip")

    assert doubt.value.tasks == ["asks_too"]
    assert fleet.work(handle).status == "completed"
    assert RAN == ["asks", "asks", "asks_too", "after"]


def test_an_answer_to_no_question_is_refused(fleet: Fleet) -> None:
    handle = submitted(fleet, before, asks)
    fleet.work(handle)

    with pytest.raises(SessionError, match="'before' of session s does not wait"):
        handle.answer("before", "skip")
    with pytest.raises(SessionError, match="'maybe' is no answer"):
        handle.answer("asks", "maybe")


# --- a damaged journal ------------------------------------------------------------------


@pytest.fixture(params=["checkpoints", "encrypted+file://{folder}/checkpoints"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    return str(request.param.format(folder=Path.cwd()))


def counting(store: str, ran: list[int], fails_at: int = -1, **options: Any) -> Workflow:
    """Eight rounds, each a commit in the journal."""

    def turn(context) -> list[int]:
        numbers = context.get_channel().get("numbers", default=[])
        if context.cycle == fails_at:
            raise KeyboardInterrupt
        ran.append(context.cycle)
        numbers.append(context.cycle)
        if context.cycle < 7:
            context.next_iteration()
        return numbers

    return chain(turn, **JOURNALED, store=store, **options)


def damage() -> None:
    """Spoil a record of the newest segment that has good ones before and after it."""
    newest = max(Path("checkpoints").glob(".s.*.journal"), key=lambda path: path.stat().st_mtime_ns)
    raw = bytearray(newest.read_bytes().rstrip(b"\0"))
    raw[-400] ^= 0xFF  # the first record is the largest: it has the random state
    newest.write_bytes(raw)


def interrupted(store: str, at: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        counting(store, [], at, **options).execute()


def test_the_records_before_the_damage_count_and_the_rest_runs_again(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(store, 6)
    damage()
    with pytest.raises(JournalDamaged, match="damaged at byte") as refused:
        counting(store, []).execute()
    ran, seen = list[int](), Seen()

    with caplog.at_level(logging.WARNING):
        result = counting(store, ran, until_damage=True, observers=[seen]).execute()

    assert "--until-damage" in refused.value.hint
    assert result == [0, 1, 2, 3, 4, 5, 6, 7]
    assert 0 < ran[0] < 6
    assert ran == list(range(ran[0], 8))
    assert f"continues from step {ran[0]}: what was committed after it is lost" in caplog.text
    (told,) = [event for event in seen if event.kind == "journal_damaged"]
    assert told.facts["error_type"] == "JournalDamaged"


def test_after_that_the_session_resumes_without_it(store: str) -> None:
    interrupted(store, 5)
    damage()
    interrupted(store, 6, until_damage=True)
    ran = list[int]()

    assert counting(store, ran).execute() == [0, 1, 2, 3, 4, 5, 6, 7]

    assert ran == [6, 7]
    causes = {found.cause for found in CheckpointManager.list_checkpoints("s", store=store)}
    assert "until-damage" in causes


def test_a_journal_without_damage_is_used_to_its_end(store: str) -> None:
    interrupted(store, 6)
    ran = list[int]()

    assert counting(store, ran, until_damage=True).execute() == [0, 1, 2, 3, 4, 5, 6, 7]

    assert ran == [6, 7]


def test_the_command_says_what_is_lost() -> None:
    written(SAVES, "count.py")
    graflow("run", "count.py", "--session", "s", "--", "5", status=KILLED)
    damage()

    refused = graflow("resume", "s", status=1)
    done = graflow("resume", "s", "--until-damage", "--json")

    assert "resume s --until-damage" in refused.err
    assert "is lost and runs again" in done.err
    assert json.loads(done.out.splitlines()[-1])["code"] == 0

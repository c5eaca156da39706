"""A finished session in Redis is run again under its name: by its program, and by a fleet's workers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import redis

import graflow_ckpt
from graflow_ckpt import CheckpointManager, Event, EveryN, ExecutionContext, KeepLast, workflow
from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    InputsChanged,
    OtherWorkflow,
    SessionCancelled,
    SessionError,
    SessionExists,
    SessionFinished,
    TaskError,
)
from graflow_ckpt.engine import shared_home
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.client import Fleet as Door
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.lists import ACTIVE
from graflow_ckpt.sessions.redis.keys import AGAIN, OLDEST, keys_of
from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import ETL
from tests.acceptance.fleet_line import Fleet as Line
from tests.acceptance.fleet_tasks import named, pay
from tests.acceptance.fleets import Fleet
from tests.pools import KEY, ROOT
from tests.stretch import comes

PAID: list[str] = []


def noted(context: Any, amount: int = 1) -> int:
    PAID.append(context.idempotency_key)
    if amount < 0:
        raise ValueError("nothing to pay")
    return amount * 10


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


# --- by its program -----------------------------------------------------------------------


def opened(client: redis.Redis, *tasks: Any, on_finished: Any = "again", **options: Any) -> Any:
    """The session, by a program; what it is run with is said anew each time."""
    flow = workflow("w").add(*(tasks or [named("pay", noted, options={"max_retries": 0})]))
    settings = options.pop("settings", Settings(workflow="w", on_finished=on_finished))
    return ExecutionContext.create(
        flow.graph, session_id="s", queue_backend="redis", channel_backend="redis",
        config={"redis_client": client}, settings=settings, **options,
    )  # fmt: skip


def tables(client: Any) -> dict[bytes, Any]:
    """All that is kept of the session but the numbers of cuts; replies to senders expire by themselves."""
    found = {key: client.dump(key) for key in client.scan_iter(match="graflow:{s}:*") if b":x:" not in key}
    facts = client.hgetall("graflow:{s}:h").items()
    return {**found, b"graflow:{s}:h": {n: v for n, v in facts if n not in (b"cuts", b"cut_of", b"paths")}}


def history() -> list[tuple[int, str]]:
    """The runs and causes of its checkpoints, oldest first."""
    found = CheckpointManager.list_checkpoints("s")
    return [(one.run or 1, one.cause) for one in sorted(found, key=lambda one: one.sequence)]


def test_each_run_has_its_inputs_its_keys_and_its_number(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    results = []
    for amount in (1, 2, 3):
        context = opened(client)
        context.channel.set("amount", amount)
        results.append(context.execute())

    assert results == [10, 20, 30]
    assert PAID == ["s/pay/0", "s#2/pay/0", "s#3/pay/0"]
    assert caplog.messages == [
        f"session s was finished and begins run {run}; the former run is kept" for run in (2, 3)
    ]
    assert history() == [(1, "end"), (2, "again"), (2, "end"), (3, "again")]


def test_the_result_of_the_former_run_is_read_from_its_checkpoint(client: redis.Redis) -> None:
    first = opened(client)
    first.channel.set("amount", 7)
    first.execute()

    opened(client).execute()

    (kept,) = (one for one in CheckpointManager.list_checkpoints("s") if one.cause == "end")
    assert ExecutionContext.resume(kept.path).result() == 70
    assert opened(client, on_finished="return").result() == 10


def test_nothing_is_replaced_before_it_is_executed(client: redis.Redis) -> None:
    opened(client).execute()
    before = tables(client)

    context = opened(client)
    context.channel.set("amount", 2)

    assert (context.status, context.steps, context.completed_tasks) == ("running", 0, set())
    assert tables(client) == before


def test_a_checkpoint_before_its_first_task_is_one_of_the_new_run(client: redis.Redis) -> None:
    opened(client).execute()
    context = opened(client)
    context.channel.set("amount", 2)

    _, saved = context.checkpoint()

    assert (saved.run, saved.steps, context.task_queue.get_pending_tasks()) == (2, 0, ["pay"])
    assert context.execute() == 20
    assert PAID == ["s/pay/0", "s#2/pay/0"]


def test_the_next_run_begins_where_it_is_told_to_and_with_its_own_limit(client: redis.Redis) -> None:
    other = [named("pay", noted), named("other", noted)]
    opened(client, *other).execute()
    PAID.clear()

    opened(client, *other, start_node="other", max_steps=5).execute()
    assert PAID == ["s#2/other/0"]
    context = opened(client, *other)
    context.add_to_queue("pay")
    context.add_to_queue("pay")
    context.execute(max_steps=1)

    assert PAID[1:] == ["s#3/pay/0"]
    assert (context.status, context.max_steps) == ("stopped", 1)


def test_where_the_former_run_cannot_be_kept_nothing_is_replaced(client: redis.Redis) -> None:
    opened(client).execute()
    before = tables(client)
    context = opened(client)
    Path("checkpoints").write_text("no folder")

    with pytest.raises(CheckpointError, match=r"s is not run again: .* cannot keep its end") as raised:
        context.execute()

    assert "Nothing was changed" in raised.value.hint
    assert tables(client) == before
    assert PAID == ["s/pay/0"]


def test_where_its_values_cannot_be_read_nothing_is_replaced(client: redis.Redis) -> None:
    opened(client).execute()
    client.hset("graflow:{s}:v", "=pay.__result__", b"\xc1 no value")
    before = tables(client)

    with pytest.raises(CheckpointError, match="cannot keep its end"):
        opened(client).execute()

    assert tables(client) == before
    assert PAID == ["s/pay/0"]


def test_of_two_that_do_it_at_once_one_wins_and_the_other_is_told(client: redis.Redis) -> None:
    opened(client).execute()
    first, second = opened(client), opened(client)
    first.channel.set("amount", 5)

    assert first.execute() == 50
    with pytest.raises(SessionExists, match="was run again or changed by another process"):
        second.execute()

    assert PAID == ["s/pay/0", "s#2/pay/0"]
    assert opened(client, on_finished="return").result() == 50


def test_one_that_was_run_again_while_its_former_end_was_kept_is_said_to_be(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(client).execute()
    late, quick = opened(client), opened(client)
    cut = shared_home.SharedHome.cut

    def overtaken(home: Any, cause: str, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(shared_home.SharedHome, "cut", cut)
        quick.execute()
        raise CheckpointError("Its program is not there any more.")

    monkeypatch.setattr(shared_home.SharedHome, "cut", overtaken)

    with pytest.raises(SessionExists, match="was run again or changed by another process"):
        late.execute()


def test_one_that_was_deleted_and_made_again_meanwhile_is_not_replaced(client: redis.Redis) -> None:
    opened(client).execute()
    late = opened(client)
    client.flushall()
    opened(client).execute()

    with pytest.raises(SessionExists, match="was run again or changed"):
        late.execute()


def test_one_that_has_failed_continues_and_one_that_was_cancelled_does_not(client: redis.Redis) -> None:
    broken = opened(client)
    broken.channel.set("amount", -1)
    with pytest.raises(ValueError, match="nothing to pay"):
        broken.execute()

    with pytest.raises((TaskError, ValueError)):
        opened(client).execute()
    assert PAID == ["s/pay/0"] * 2
    with pytest.raises(InputsChanged):
        opened(client).channel.set("amount", 1)
    context = opened(client)
    context.session.commit([("status", "cancelled", "enough")])

    with pytest.raises(SessionCancelled, match="enough"):
        opened(client).execute()


def test_what_is_said_of_a_finished_one_names_the_words_that_run_it_again(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    opened(client).execute()

    assert opened(client, on_finished="return").execute() == 10

    assert caplog.messages[-1].endswith('another session id, or Settings(on_finished="again")')


def test_a_context_has_one_run_and_another_workflow_none(client: redis.Redis) -> None:
    context = opened(client)
    context.execute()

    with pytest.raises(SessionFinished, match="has one run") as refused:
        context.execute()
    assert "when the session is opened again" in refused.value.hint
    with pytest.raises(OtherWorkflow):
        opened(client, named("strange", noted))
    with pytest.raises(OtherWorkflow):
        opened(client, settings=Settings(workflow="other", on_finished="again"))


def test_a_run_that_was_rewound_does_not_give_its_number_to_another(client: redis.Redis) -> None:
    opened(client).execute()
    opened(client).execute()
    (kept,) = (one for one in CheckpointManager.list_checkpoints("s") if one.cause == "end")

    ExecutionContext.rewind(kept.path)
    assert client.hget("graflow:{s}:c", "format") == b"3"  # it is the first run, as it was
    opened(client).execute()

    assert PAID == ["s/pay/0", "s#2/pay/0", "s#3/pay/0"]
    assert client.hget("graflow:{s}:c", "format") == b"4"


def test_a_fork_of_a_later_run_and_a_rewind_to_one_keep_its_number(client: redis.Redis) -> None:
    for _ in range(3):
        opened(client).execute()
    kept = [one for one in CheckpointManager.list_checkpoints("s") if (one.cause, one.run) == ("end", 2)]

    rewound = ExecutionContext.rewind(kept[0].path)
    fork = ExecutionContext.fork(kept[0].path, "t")

    assert (rewound.state.run, fork.state.run) == (2, 2)
    assert client.hget("graflow:{s}:c", "format") == client.hget("graflow:{t}:c", "format") == b"4"


def test_retention_counts_the_checkpoints_of_each_run_apart(client: redis.Redis) -> None:
    tasks = [named(f"t{n}", noted) for n in range(3)]
    settings = Settings(workflow="w", on_finished="again", policy=EveryN(1), keep=KeepLast(1))

    for _ in range(3):
        opened(client, *tasks, settings=settings).execute()

    assert history() == [(1, "end"), (2, "end"), (3, "policy")]


def test_a_result_is_not_that_of_a_run_that_another_process_has_begun_since(client: redis.Redis) -> None:
    others = [lambda: opened(client).execute()]

    def another(event: Event) -> None:
        if event.kind == "session_ended" and others:
            others.pop()()

    settings = Settings(workflow="w", on_finished="again", observers=(another,))
    context = opened(client, settings=settings)
    context.channel.set("amount", 4)

    with pytest.raises(Fenced, match="was run again before its result was read"):
        context.execute()
    assert PAID == ["s/pay/0", "s#2/pay/0"]


def test_one_of_the_oldest_format_and_one_that_is_read_by_pages_are_run_again(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_home, "MANY", 0)
    first = opened(client)
    client.hset("graflow:{s}:c", "format", OLDEST)
    first.execute()

    assert opened(client).execute() == 10
    assert PAID == ["s/pay/0", "s#2/pay/0"]
    assert client.hget("graflow:{s}:c", "format") == b"%d" % AGAIN


def test_a_checkpoint_of_the_run_before_does_not_show_what_the_live_one_has_done(client: redis.Redis) -> None:
    first = opened(client)
    first.execute()
    path, _ = first.checkpoint()
    opened(client).execute()

    with pytest.raises(CheckpointError, match="was taken back"):
        ExecutionContext.resume(path)
    latest = CheckpointManager.get_latest("s")
    assert latest is not None
    assert ExecutionContext.resume(latest).result() == 10


# --- by a fleet ---------------------------------------------------------------------------


def submitted(mine: Fleet, amount: int = 1, existing: Any = "again", **options: Any) -> Handle:
    """The session, by a program that submits it."""
    flow = workflow("bills", "one", **options).add(named("pay", pay))
    flow.ledger = True
    return flow.submit(Door(mine.client), inputs={"amount": amount}, existing=existing)


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fleet's checkpoints are opened with here."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", KEY)


def test_workers_run_it_again_with_other_inputs_and_other_keys(
    mine: Fleet, sealed: None, caplog: pytest.LogCaptureFixture
) -> None:
    with mine.pool(n=2):
        results = [submitted(mine, amount).result(30) for amount in (1, 2, 3)]

    assert results == [("one/pay/0", 1), ("one#2/pay/0", 2), ("one#3/pay/0", 3)]
    assert [message for message in caplog.messages if "begins" in message] == [
        f"session one was finished and begins run {run}; the former run is kept" for run in (2, 3)
    ]
    assert mine.completed() == ["pay"]  # the ledger is of the last run
    found = CheckpointManager.list_checkpoints("one", store=mine.server.url)
    former = {one.run or 1: one.path for one in found if one.cause == "end"}
    assert [ExecutionContext.resume(former[run]).result() for run in (1, 2)] == results[:2]


def test_the_words_of_the_workflow_count_where_submit_says_nothing(mine: Fleet) -> None:
    with mine.pool(n=1):
        submitted(mine, existing=None).result(30)
        with pytest.raises(SessionExists):
            submitted(mine, existing=None)
        with pytest.raises(SessionExists):
            submitted(mine, existing="error", on_finished="again")
        assert submitted(mine, existing="return", on_finished="again").result(30)[0] == "one/pay/0"

        assert submitted(mine, existing=None, on_finished="again").result(30)[0] == "one#2/pay/0"


def test_a_task_that_is_called_again_under_its_key_has_another_run(mine: Fleet) -> None:
    call: Any = {"url": Door(mine.client), "key": "order-7", "existing": "again"}
    one = named("pay", pay)
    with mine.pool(n=1):
        first, second = (one.submit_call((), {"amount": amount}, **call).result(30) for amount in (1, 2))

    assert (first[1], second[1]) == (1, 2)
    assert second[0] == first[0].replace("/pay/", "#2/pay/")


def test_a_session_that_is_not_finished_is_left_as_it_is(mine: Fleet) -> None:
    handle = submitted(mine)
    before = mine.client.link.client.hgetall(f"{keys_of('one')}c")

    assert submitted(mine).session == handle.session
    with pytest.raises(SessionExists, match="other arguments"):
        submitted(mine, 2)

    assert mine.client.link.client.hgetall(f"{keys_of('one')}c") == before
    handle.cancel("enough")
    with pytest.raises(SessionError, match="is cancelled: it cannot go on"):
        submitted(mine)


def test_one_that_stopped_goes_on(mine: Fleet) -> None:
    def stopped(max_steps: int) -> Handle:
        flow = workflow("bills", "one").add(named("first") >> named("second"))
        return flow.submit(Door(mine.client), existing="again", max_steps=max_steps)

    with mine.pool(n=1):
        assert stopped(1).wait(30).status == "stopped"
        found = stopped(2).wait(30)

    assert (found.status, found.steps) == ("completed", 2)
    assert [line.task for line in mine.lines("ended")] == ["first", "second"]


def test_where_its_store_cannot_be_written_nothing_is_replaced_and_another_one_can_be_named(
    mine: Fleet, sealed: None
) -> None:
    store = mine.folder / "kept"

    def kept_there(store: Path) -> Handle:
        flow = workflow("bills", "one").add(named("pay", pay))
        return flow.submit(Door(mine.client), existing="again", store=str(store))

    with mine.pool(n=1):
        kept_there(store).result(30)
        store.rmdir() if store.exists() else None
        store.write_text("no folder")

        with pytest.raises(Exception, match="kept") as refused:
            submitted(mine)

        assert mine.client.session("one").status().status == "completed"
        assert mine.client.session("one").result(1)[0] == "one/pay/0"
        assert kept_there(mine.folder / "other").result(30)[0] == "one#2/pay/0"
    assert "Traceback" not in str(refused.value)
    assert CheckpointManager.list_checkpoints("one", store=str(mine.folder / "other"))


def test_another_workflow_does_not_take_its_name(mine: Fleet) -> None:
    with mine.pool(n=1):
        submitted(mine).result(30)

    with pytest.raises(OtherWorkflow, match="'bills', and this one is 'letters'"):
        workflow("letters", "one").add(named("pay", pay)).submit(Door(mine.client), existing="again")


def test_one_that_its_program_runs_is_not_given_to_workers(mine: Fleet, sealed: None) -> None:
    client: Any = mine.client.link.client
    opened(client).execute()
    flow = workflow("w", "s").add(named("pay", pay))

    with pytest.raises(CheckpointError):
        flow.submit(Door(mine.client), existing="again")

    assert opened(client, on_finished="return").execute() == 10


def test_tokens_of_the_run_before_do_not_count(mine: Fleet) -> None:
    client: Any = mine.client.link.client
    tokens = []
    with mine.pool(n=1):
        for _ in range(2):
            submitted(mine).result(30)
            tokens.append(list(client.scan_iter(match=f"{keys_of('one')}x:e*")))
    client.zrem(ACTIVE, "one")  # as stewards do with one that has ended
    again = submitted(mine)

    waiting = client.zrange(f"{keys_of('one')}tok", 0, -1)

    assert again.status().status == "running"
    assert [token[:2] for token in waiting] == [b"e3"]
    assert client.zscore(ACTIVE, "one") is not None


def older(folder: Path) -> str:
    """The package as it is, but for the format that it does not know."""
    package = Path(graflow_ckpt.__file__).parent
    shutil.copytree(package, folder / "graflow_ckpt", ignore=shutil.ignore_patterns("__pycache__"))
    keys = folder / "graflow_ckpt/sessions/redis/keys.py"
    text = keys.read_text()
    assert "\nAGAIN = 4\n" in text
    keys.write_text(text.replace("\nAGAIN = 4\n", "\nAGAIN = 3\n"))
    return f"{folder}:{ROOT}"


def test_a_worker_of_a_version_that_knows_no_runs_leaves_the_second_to_others(mine: Fleet) -> None:
    old = {"PYTHONPATH": older(mine.folder / "older"), "PYTHONSAFEPATH": "1"}
    with mine.pool("old", n=1, environment=old):
        assert submitted(mine).result(30)[0] == "one/pay/0"  # the first is as it was
        again = submitted(mine, 2)

        assert comes(lambda: "session one is left to other workers" in mine.said), mine.said
        assert "has format 4" in mine.said
        with mine.pool("new", n=1):
            assert again.result(30) == ("one#2/pay/0", 2)


# --- from the command line ------------------------------------------------------------------


def test_submit_knows_the_same_words(server: Line, tmp_path: Path) -> None:
    program("etl.py", ETL)

    def run(*words: str, **more: Any) -> Any:
        return server("submit", "etl.py", "--session", "night", *words, **more)

    run()
    assert "--existing return or again" in run(status=1).err
    assert "--existing return or again" in run("--existing", "error", status=1).err
    assert "'refuse'" in run("--existing", "refuse", status=2).err
    with server.pool(folder=tmp_path):
        assert server("wait", "night").err
        again = run("--existing", "again", "--input", "rows=9", "--wait", "--json")
    assert again.document["status"] == "completed"
    assert "session night was finished and begins run 2; the former run is kept" in again.err
    program("etl.py", ETL.replace('workflow("etl")', 'workflow("etl", on_finished="again")'))
    assert "begins run 3" in run().err

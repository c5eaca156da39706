"""What was broken once, one small program per defect; and sessions that go back."""

from __future__ import annotations

import random
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, KeepLast, TaskSpec, Workflow, workflow
from graflow_ckpt.core.facts import Claim
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.task_context import TaskChannel
from graflow_ckpt.sessions.memory import MemorySession
from graflow_ckpt.stores import open_store
from tests.acceptance.command_line import run
from tests.acceptance.places import Box
from tests.loops import chain, loop, of

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


def killed_and_resumed(tmp_path: Path, body: str) -> str:
    """What a program says that kills itself (`crash` is true) and is started again."""
    program = tmp_path / "program.py"
    head = "import os, sys\nfrom graflow_ckpt import task, workflow\ncrash = sys.argv[1:] == ['crash']\n"
    program.write_text(head + dedent(body))
    run(program, "crash", status=9)
    return run(program)


def test_a_forked_child_that_leaves_the_interpreter_cuts_nothing_off_the_journal(tmp_path: Path) -> None:
    said = killed_and_resumed(
        tmp_path,
        """
        ready, go = os.pipe()

        with workflow("w", session_id="s", durability="journal") as flow:
            @task
            def fork():
                if "crash" in sys.argv and os.fork() == 0:
                    os.read(ready, 1)
                    sys.exit(0)

            @task(inject_context=True)
            def more(context):
                print("more", context.cycle)
                if context.cycle < 5:
                    context.next_iteration()

            @task
            def last():
                if crash:
                    os.write(go, b"x")
                    os.wait()
                    os._exit(9)
                print("last")

            fork >> more >> last
            flow.execute()
        """,
    )
    assert "more" not in said
    assert "last" in said


@pytest.mark.parametrize("on_interrupted", ["rerun", "skip", "fail", "ask"])
def test_going_back_to_a_cut_is_no_crash(tmp_path: Path, on_interrupted: Any) -> None:
    attempts = []

    def make(context) -> None:
        context.channel.set("box", Box(0))

    def fill(context) -> int:
        attempts.append(0)
        context.channel.get("box").items[0] += 1
        if len(attempts) < 6:
            raise ValueError("not yet")
        return 7

    last = of(fill, max_retries=5, on_interrupted=on_interrupted)
    flow = chain(make, last, session_id="s", store=tmp_path, durability="journal")

    assert flow.execute() == 7
    assert flow.get_channel().get("box").items == [1]


def test_a_cut_that_is_kept_elsewhere_takes_nothing_off_the_journal(tmp_path: Path) -> None:
    said = killed_and_resumed(
        tmp_path,
        """
        with workflow("w", session_id="s", durability="journal") as flow:
            @task(inject_context=True)
            def step(context):
                print("step", context.cycle)
                if crash and context.cycle in (2, 4, 6):
                    context.execution_context.checkpoint(f"elsewhere/{context.cycle}.pkl")
                if crash and context.cycle == 8:
                    os._exit(9)
                if context.cycle < 9:
                    context.next_iteration()

            flow.execute()
        """,
    )
    assert [line for line in said.splitlines() if line.startswith("step")] == ["step 8", "step 9"]


REWOUND = """
import os, sys
from graflow_ckpt import CheckpointManager, task, workflow


def dying(event):
    if "dies" in sys.argv and event.kind == "session_started":
        os._exit(9)

with workflow("w", session_id="s", durability="journal", observers=[dying]) as flow:
    @task(inject_context=True)
    def a(context):
        print("a", "new" if "new" in sys.argv else "")
        context.checkpoint()

    @task(inject_context=True)
    def b(context):
        print("b")
        context.checkpoint()

    @task(inject_context=True)
    def c(context):
        print("c")
        context.checkpoint()

    @task
    def d():
        if "crash" in sys.argv:
            os._exit(9)
        print("d")

    a >> b >> c >> d
    if "rewind" in sys.argv:
        context, _ = CheckpointManager.resume_from_checkpoint(sys.argv[2])
        if "new" in sys.argv:
            context.graph = flow.graph
        context.settings = flow.settings
        context.execute()
    else:
        flow.execute()
"""


def test_a_rewind_that_is_refused_leaves_the_history_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REWOUND.replace('"new" if "new" in sys.argv else ""', "0"))
    run(program, "crash", status=9)
    first = next((tmp_path / "checkpoints").glob("session_s_step_1_*.pkl"))
    program.write_text(REWOUND.replace('"new" if "new" in sys.argv else ""', "1"))
    assert "GraphChanged" in run(program, "rewind", str(first), "new", status=1)
    program.write_text(REWOUND.replace('"new" if "new" in sys.argv else ""', "0"))
    assert run(program) == "d\n"


def test_a_crash_after_a_rewind_to_a_copy_goes_on_from_the_copy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REWOUND)
    run(program, "crash", status=9)
    second = next((tmp_path / "checkpoints").glob("session_s_step_2_*.pkl"))
    for file in tmp_path.glob(f"checkpoints/{second.stem}.*"):
        file.rename(tmp_path / file.name.replace(second.stem, "copy"))
    run(program, "rewind", str(tmp_path / "copy.pkl"), "dies", status=9)
    assert run(program) == "c\nd\n"


@pytest.mark.parametrize("durability", ["none", "checkpoint", "journal"])
def test_a_failed_attempt_leaves_no_trace_in_the_data_that_it_was_given(durability: Any) -> None:
    def count(context, data=None) -> Any:
        if data is None:
            context.next_iteration(Box(0))
            return None
        data.items[0] += 1
        if context.attempt == 1:
            raise ValueError("not yet")
        return data.items

    assert chain(count, max_retries=1, durability=durability).execute() == [1]


def test_a_spec_that_is_queued_by_its_caller_brings_its_data(tmp_path: Path) -> None:
    def double(data=None) -> Any:
        return {"x": 2 * data["x"]}

    flow = chain(double, session_id="s", store=tmp_path)
    queue = flow.execution_context.task_queue
    flow.execution_context.add_to_queue(TaskSpec("double", {"x": 21}))

    assert [spec.task_data for spec in queue.get_pending_task_specs()] == [{"x": 21}]
    assert flow.execute() == {"x": 42}


def test_a_body_on_a_thread_sees_the_callers_context_variables() -> None:
    who = ContextVar("who", default="nobody")
    who.set("caller")
    seen = []

    def a() -> None:
        seen.append(who.get())
        who.set("a")

    def b() -> None:
        seen.append(who.get())

    workflow("w").add(of(a), of(b)).execute()

    assert seen == ["caller", "caller"]
    assert who.get() == "caller"


def test_a_task_that_is_its_own_loop_is_a_start() -> None:
    rounds = []

    def again(context) -> None:
        rounds.append(context.cycle)
        if len(rounds) == 3:
            context.terminate_workflow("enough")

    own = of(again)
    chain(own, own).execute()

    assert rounds == [0, 1, 2]


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
@pytest.mark.parametrize("options", [{}, {"timeout": 20.0}])
def test_a_failed_task_that_was_mended_draws_the_same_random_numbers(
    tmp_path: Path, durability: Any, options: dict[str, Any]
) -> None:
    def drawn(session: str, fails: list[int]) -> Any:
        random.seed(1)

        def draw(context) -> float:
            number = random.random()
            if context.cycle in fails:
                raise ValueError("to be mended")
            context.channel.append("drawn", number)
            if context.cycle < 3:
                context.next_iteration()
            return number

        flow = chain(draw, **options, session_id=session, store=tmp_path, durability=durability)
        with suppress(ValueError):
            flow.execute()
        fails.clear()
        flow.execute()
        return flow.get_channel().get("drawn"), random.random()

    assert drawn("failed", [2]) == drawn("whole", [])


def test_whether_a_value_is_there_does_not_cost_a_list_of_all_values() -> None:
    class Session(MemorySession):
        def names(self) -> list[str]:
            raise AssertionError("all names were listed")

    session = Session(SessionState("s"))
    session.commit([("put", "there", b"\xc0", -1)])
    channel = TaskChannel(Attempt(session, Claim(TaskSpec("t"), 1)))
    channel.set("set", 1)
    channel.append("appended", 1)
    channel.get("missing")

    assert [name in channel for name in ("there", "set", "appended", "missing")] == [True, True, True, False]


@pytest.mark.parametrize("changed", ["reuse", "rerun"])
def test_a_task_that_was_running_may_be_gone_from_the_program(tmp_path: Path, changed: str) -> None:
    said = killed_and_resumed(
        tmp_path,
        f"""
        from graflow_ckpt import EveryTask

        with workflow("w", session_id="s", checkpoint=EveryTask(), changed={changed!r}) as flow:
            @task
            def first(): pass

            @task
            def last(): print("last")

            if crash:
                @task
                def gone(): os._exit(9)
                first >> gone >> last
            else:
                first >> last
            flow.execute()
        """,
    )
    assert said == "last\n"


def test_a_join_that_waits_for_one_edge_less_does_not_stall(tmp_path: Path) -> None:
    said = killed_and_resumed(
        tmp_path,
        """
        from graflow_ckpt import EveryTask

        with workflow("w", session_id="s", checkpoint=EveryTask()) as flow:
            @task
            def start(): pass

            @task
            def way():
                if crash:
                    os._exit(9)

            @task
            def join(): print("join")

            start >> way >> join
            if crash:
                start >> join
            flow.execute()
            print(flow.execution_context.status)
        """,
    )
    assert said == "join\ncompleted\n"


# --- sessions that go back --------------------------------------------------------------


def counting(store: str, flaw: Path, ran: list[int]) -> Workflow:
    """Five rounds, each with a cut; the fourth one fails as long as the flaw is there."""

    def count(context) -> None:
        if context.cycle == 3 and flaw.exists():
            raise OSError("broken")
        ran.append(context.cycle)

    return loop(5, count, checkpoint=EveryTask(), keep=KeepLast(10), store=store)


def counted(store: str, flaw: Path) -> list[int]:
    """The rounds that another run of the session has made."""
    ran = list[int]()
    counting(store, flaw, ran).execute()
    return ran


def after_a_failure(store: str, flaw: Path) -> list[str]:
    """The session has come to its failure, which is mended; its checkpoints, the newest first."""
    flaw.touch()
    with pytest.raises(OSError, match="broken"):
        counting(store, flaw, []).execute()
    flaw.unlink()
    return [found.path for found in CheckpointManager.list_checkpoints("s", store=store)]


@pytest.fixture(params=["{}/checkpoints", "sqlite:///{}/runs.db"], ids=["local", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def test_a_session_continues_from_the_older_checkpoint_that_a_restored_backup_has(
    store: str, tmp_path: Path
) -> None:
    newest, older, *_ = after_a_failure(store, tmp_path / "flaw")
    for path in (newest, older):
        assert open_store(store).delete(path)

    assert counted(store, tmp_path / "flaw") == [2, 3, 4]


def test_a_session_of_which_nothing_is_left_begins_anew(store: str, tmp_path: Path) -> None:
    for path in after_a_failure(store, tmp_path / "flaw"):
        assert open_store(store).delete(path)

    assert counted(store, tmp_path / "flaw") == [0, 1, 2, 3, 4]


# --- going back on purpose --------------------------------------------------------------


def causes(store: str) -> list[str]:
    """Those of the session's checkpoints, the newest first."""
    return [found.cause for found in CheckpointManager.list_checkpoints("s", store=store)]


def test_a_named_checkpoint_that_is_the_newest_is_continued_without_a_rewind(
    store: str, tmp_path: Path
) -> None:
    newest, *_ = after_a_failure(store, tmp_path / "flaw")

    context, _ = CheckpointManager.resume_from_checkpoint(newest, store=store)
    context.execute()

    assert context.status == "completed"
    assert "rewind" not in causes(store)


def test_a_rewind_is_there_before_the_first_task_and_what_came_later_is_no_fallback(
    store: str, tmp_path: Path
) -> None:
    *_, older, oldest = after_a_failure(store, tmp_path / "flaw")
    (tmp_path / "flaw").touch()

    context, _ = CheckpointManager.resume_from_checkpoint(oldest, store=store)
    with pytest.raises(OSError, match="broken"):
        context.execute()
    found = CheckpointManager.list_checkpoints("s", store=store)
    (rewind,) = [one for one in found if one.cause == "rewind"]
    assert rewind.parent == CheckpointManager.verify(oldest).checkpoint_id
    assert older != oldest
    for one in found:
        if one.epoch == rewind.epoch and one.sequence > rewind.sequence:
            assert open_store(store).delete(one.path)
    (tmp_path / "flaw").unlink()

    assert counted(store, tmp_path / "flaw") == [1, 2, 3, 4]

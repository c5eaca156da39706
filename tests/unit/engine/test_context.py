"""ExecutionContext: what a caller holds of a session, under the documented names."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, TaskSpec, WorkflowEngine, workflow
from graflow_ckpt.core.errors import (
    BadSessionId,
    CheckpointError,
    InputsChanged,
    NotStorable,
    SessionError,
    UnknownTask,
)
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.policy import EveryN
from graflow_ckpt.core.task import BestEffort, Group, Options, Task
from graflow_ckpt.engine.body.attempt import digest_of
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.places import Make
from tests.loops import LONG, chain


class Model:
    """A live value."""


def one() -> int:
    return 1


def two(a: int) -> int:
    return a + 1


@pytest.fixture
def graph() -> TaskGraph:
    made = TaskGraph()
    made.add(Task("a", one, Options(priority=3, max_retries=2)))
    made.add(Task("b", two))
    made.add(Group("g", BestEffort(), ("b",), frozenset("b")))
    made.add_edge("a", "b")
    made.add_edge("b", "g")
    return made


@pytest.fixture
def context(graph: TaskGraph, tmp_path: Path) -> Iterator[ExecutionContext]:
    made = ExecutionContext.create(graph, "a", session_id="s", store=str(tmp_path / "kept"))
    yield made
    made.home.close()


@pytest.fixture(params=["memory", "redis"])
def anywhere(
    request: pytest.FixtureRequest, graph: TaskGraph, tmp_path: Path, redis_url: str
) -> Iterator[ExecutionContext]:
    made = ExecutionContext.create(
        graph, "a", session_id="s", store=str(tmp_path / "kept"), queue_backend=request.param,
        channel_backend=request.param, config={"redis_url": redis_url},
    )  # fmt: skip
    yield made
    made.home.close()


# --- making one ------------------------------------------------------------------------


def test_a_new_session_has_not_run_and_touches_no_disk(anywhere: ExecutionContext, tmp_path: Path) -> None:
    assert (anywhere.start_node, anywhere.steps, anywhere.max_steps) == ("a", 0, None)
    assert (anywhere.status, anywhere.completed_tasks, anywhere.cycle_counts) == ("running", set(), {})
    assert (anywhere.last_checkpoint_path, anywhere.result()) == (None, None)
    assert anywhere.task_queue.is_empty()
    assert not anywhere.basis.resumed
    assert not (tmp_path / "kept").exists()


def test_a_session_without_an_id_gets_one_of_its_own(graph: TaskGraph) -> None:
    first, second = ExecutionContext.create(graph, "a"), ExecutionContext.create(graph, "a")

    assert first.session_id != second.session_id
    assert not first.named


@pytest.mark.parametrize("session", ["a/b", "../a", "..", ".", "a\\b", "a\0b", "x" * 65])
def test_an_id_that_could_leave_the_folder_is_refused(graph: TaskGraph, session: str) -> None:
    with pytest.raises(BadSessionId):
        ExecutionContext.create(graph, "a", session_id=session)
    with pytest.raises(BadSessionId):
        _ = workflow("w", session_id=session).execution_context


def test_an_interval_is_a_policy(graph: TaskGraph, tmp_path: Path) -> None:
    made = ExecutionContext.create(graph, "a", auto_checkpoint_interval=3, settings=Settings(workflow="w"))
    constructed = ExecutionContext(graph, "s", store=str(tmp_path), auto_checkpoint_interval=4)

    assert (made.settings.policy, made.settings.workflow) == (EveryN(3), "w")
    assert constructed.settings.policy == EveryN(4)


# --- facts -----------------------------------------------------------------------------


def test_what_has_run_can_be_read(context: ExecutionContext) -> None:
    assert WorkflowEngine().execute(context) == 2

    assert (context.completed_tasks, context.steps, context.status) == ({"a", "b"}, 2, "completed")
    assert (context.get_result("a"), context.get_result("nobody", 7), context.result()) == (1, 7, 2)
    assert context.facts()["completed"] == 2
    assert context.last_checkpoint_path is not None


def test_the_sets_that_are_given_are_copies(anywhere: ExecutionContext) -> None:
    anywhere.completed_tasks.add("x")
    anywhere.cycle_counts["x"] = 1

    assert (anywhere.completed_tasks, anywhere.cycle_counts) == (set(), {})


def test_cycles_count_how_often_a_task_came_round() -> None:
    def a(context: Any) -> int:
        if context.cycle < 3:
            context.next_iteration()
        return int(context.cycle)

    ctx = chain(a)
    ctx.execute("a")

    assert ctx.execution_context.cycle_counts == {"a": 3}
    controller = ctx.execution_context.cycle_controller
    assert (controller.get_count("a"), controller.get_count("nobody")) == (3, 0)


# --- changes ---------------------------------------------------------------------------


def test_a_task_can_be_added_to_the_queue_by_name_as_a_task_or_as_a_spec(anywhere: ExecutionContext) -> None:
    anywhere.add_to_queue("b")
    anywhere.add_to_queue(anywhere.graph.nodes["a"])  # type: ignore[arg-type]
    anywhere.add_to_queue(TaskSpec("b", {"k": 1}, priority=9))
    anywhere.add_to_queue("g")

    specs = anywhere.task_queue.get_pending_task_specs()
    assert [spec.task_id for spec in specs] == ["b", "a", "b", "g"]
    assert [(spec.priority, spec.max_retries) for spec in specs[:2]] == [(9, 3), (3, 2)]
    assert specs[0].task_data == {"k": 1}
    assert anywhere.get_next_task() == "b"
    with pytest.raises(UnknownTask):
        anywhere.add_to_queue("nobody")


def test_there_is_no_next_task_when_nothing_waits(anywhere: ExecutionContext) -> None:
    assert anywhere.get_next_task() is None


def test_a_task_can_be_marked_as_completed(context: ExecutionContext) -> None:
    context.mark_task_completed("a")

    assert (context.completed_tasks, context.steps, context.get_result("a", 5)) == ({"a"}, 1, None)
    assert context.task_queue.is_empty()


def test_nothing_is_marked_in_a_session_that_has_ended(context: ExecutionContext) -> None:
    WorkflowEngine().execute(context)

    with pytest.raises(SessionError, match="Session s is completed at step 2"):
        context.mark_task_completed("a")

    assert (context.steps, context.task_queue.size()) == (2, 0)


def test_a_completed_session_can_start_elsewhere(context: ExecutionContext) -> None:
    WorkflowEngine().execute(context)

    assert WorkflowEngine().execute(context, "b") == 2

    assert (context.steps, context.status) == (3, "completed")


# --- values and inputs -----------------------------------------------------------------


def test_what_the_caller_sets_is_checked_where_it_is_set(anywhere: ExecutionContext) -> None:
    with pytest.raises(NotStorable) as caught:
        anywhere.get_channel().set("x", [1, (n for n in ())])

    assert str(caught.value.path).startswith("x")
    assert "x" not in anywhere.channel


def resumed(make: Make, then: Any) -> None:
    """Start a session with inputs, fail in it, and open it again."""
    for again in (False, True):

        def a() -> None:
            raise OSError("not yet")

        ctx = chain(a, make=make, session_id="s")
        if again:
            try:
                then(ctx.get_channel())
            finally:
                ctx.execution_context.home.close()
        else:
            ctx.get_channel().set("plain", {"k": 1})
            ctx.get_channel().set("live", {1: slice(1, 2)})
            ctx.get_channel().append("list", 1)
            with pytest.raises(OSError, match="not yet"):
                ctx.execute("a")


def test_an_equal_input_is_dropped_on_resume(make: Make) -> None:
    def then(channel: Any) -> None:
        channel.set("plain", {"k": 1})
        channel.set("live", {1: slice(1, 2)})

        assert channel.get("plain") == {"k": 1}

    resumed(make, then)


@pytest.mark.parametrize(
    ("key", "value", "word"), [("plain", {"k": 2}, "another"), ("live", 1, "another"), ("new", 1, "no")]
)
def test_a_different_input_is_refused_on_resume(make: Make, key: str, value: Any, word: str) -> None:
    with pytest.raises(InputsChanged, match=f"was started with {word} input '{key}'"):
        resumed(make, lambda channel: channel.set(key, value))


def test_an_append_to_an_input_is_refused_on_resume(make: Make) -> None:
    with pytest.raises(InputsChanged, match="appends to the input 'list' again"):
        resumed(make, lambda channel: channel.append("list", 1))


def test_inputs_are_compared_by_what_they_are() -> None:
    assert digest_of(b"\x01") == digest_of(b"\x01") != digest_of(b"\x02")


# --- checkpoints -----------------------------------------------------------------------


def test_a_checkpoint_can_be_taken_before_anything_has_run(context: ExecutionContext, tmp_path: Path) -> None:
    user = {"note": "first"}

    path, metadata = context.checkpoint(metadata=user)

    assert (user, metadata.user_metadata) == ({"note": "first"}, {"note": "first"})
    assert Path(path).parent == tmp_path / "kept"
    assert context.checkpoint_metadata["steps"] == 0
    assert context.home.lease is None  # it was opened for this alone
    back = ExecutionContext.load(path)
    assert back.execute() == 2
    assert back.completed_tasks == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"storage": "s3"}, "storage='s3': nothing says where"),
        ({"storage": "tape"}, "storage='tape' is none of: memory, local"),
        ({"path": "ftp://bucket/x.pkl"}, "ftp://"),
        ({"metadata": {"x": object()}}, r"metadata\['x'\]"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    anywhere: ExecutionContext, tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        anywhere.checkpoint(**arguments)

    assert not (tmp_path / "kept").exists()


def test_no_checkpoint_is_taken_from_outside_while_a_task_works_on_a_live_value(tmp_path: Path) -> None:
    def a(context: Any) -> None:
        context.get_channel().get("model")
        with pytest.raises(CheckpointError, match="A running task works on model"):
            context.execution_context.checkpoint()

    ctx = chain(a, session_id="s", store=tmp_path)
    ctx.get_channel().set("model", Model())
    ctx.execute("a")

    assert ctx.execution_context.status == "completed"


def test_a_task_may_take_a_checkpoint_from_outside_if_nothing_is_on_loan(tmp_path: Path) -> None:
    def a(context: Any) -> int:
        path, _ = context.execution_context.checkpoint()
        return len(CheckpointManager.resume_from_checkpoint(path)[0].completed_tasks)

    assert chain(a, session_id="s", store=tmp_path).execute("a") == 0  # a itself is pending in it


class Watched(dict[str, Any]):
    """Values that call a function when one is about to be committed."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.meanwhile()


@pytest.mark.parametrize("driven", [True, False], ids=["by a run", "by its caller"])
def test_a_checkpoint_that_another_thread_takes_has_all_of_a_commit_or_nothing(
    tmp_path: Path, driven: bool
) -> None:
    taken: list[str] = []

    def a(context: Any) -> None:
        context.get_channel().set("x", 1)
        context.get_channel().set("y", 2)

    ctx = chain(a, session_id="s", store=tmp_path).execution_context
    taker = Thread(target=lambda: taken.append(ctx.checkpoint()[0]))

    def meanwhile() -> None:
        if taker.ident is None:
            taker.start()
            taker.join(0.1)  # without the lock it has taken one by then

    ctx.state.values = Watched(meanwhile)
    if driven:
        ctx.execute()
    else:
        ctx.schedule_start()  # else the checkpoint has to commit that, and waits for it
        ctx.session.commit([("put", "x", b"\x01", -1), ("put", "y", b"\x02", -1)])
    taker.join()

    channel = CheckpointManager.resume_from_checkpoint(taken[0])[0].get_channel()
    assert (channel.get("x"), channel.get("y")) == (1, 2)


class Asked(dict[int, TaskSpec]):
    """Specs that call a function when one of them is asked for."""

    def __init__(self, specs: dict[int, TaskSpec], meanwhile: Callable[[], object]) -> None:
        super().__init__(specs)
        self.meanwhile = meanwhile

    def __getitem__(self, key: int) -> TaskSpec:
        self.meanwhile()
        return super().__getitem__(key)


@pytest.mark.parametrize("ask", ["get_pending_tasks", "get_pending_task_specs"])
def test_what_is_pending_can_be_asked_while_another_thread_commits(
    context: ExecutionContext, ask: str
) -> None:
    context.add_to_queue("a")
    context.add_to_queue("b")
    other = Thread(target=lambda: context.session.commit([("clear",)]))

    def meanwhile() -> None:
        if other.ident is None:
            other.start()
            other.join(0.1)  # without the lock it has committed by then

    context.state.specs = Asked(context.state.specs, meanwhile)

    assert len(getattr(context.task_queue, ask)()) == 2
    other.join()
    assert getattr(context.task_queue, ask)() == []


class Joined:
    """A thread that does something once, as soon as it is called."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.thread = Thread(target=call)

    def __call__(self) -> None:
        if self.thread.ident is None:
            self.thread.start()
            self.thread.join(0.1)  # without the lock it is done by then


class Busy(Disk):
    """A disk that calls a function when the first checkpoint appears."""

    __slots__ = ("meanwhile",)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if target.endswith(".meta.json"):
            self.meanwhile()


def test_what_another_thread_sets_while_a_run_begins_is_kept_from_then_on(tmp_path: Path) -> None:
    def a(context: Any) -> None:
        late.thread.join()
        shutil.copytree("checkpoints", "as it was then")

    disk = Busy()
    store = LocalStore("checkpoints", disk=disk)
    ctx = chain(a, session_id="s", store=store, durability="journal").execution_context
    disk.meanwhile = late = Joined(lambda: ctx.channel.set("late", 1))

    ctx.execute()

    then = chain(a, session_id="s", store="as it was then").execution_context
    assert then.channel.get("late") == 1


class Listed(dict[int, TaskSpec]):
    """Specs that call a function when the first of them is looked at."""

    def __init__(self, specs: dict[int, TaskSpec], meanwhile: Callable[[], object]) -> None:
        super().__init__(specs)
        self.meanwhile = meanwhile

    def values(self) -> Any:
        for spec in super().values():
            yield spec
            self.meanwhile()


def test_a_session_is_continued_while_another_thread_adds_to_it() -> None:
    def b() -> None:
        ran.append("b")
        if len(ran) == 1:
            raise OSError("x")

    ran: list[str] = []
    with pytest.raises(OSError, match="x"):
        chain(one, b, session_id="s").execute()
    ctx = chain(one, b, session_id="s", changed="reuse").execution_context
    adding = Joined(lambda: ctx.add_to_queue("one"))
    ctx.state.specs = Listed(ctx.state.specs, adding)

    ctx.execute()

    adding.thread.join()
    assert ran[:2] == ["b", "b"]  # and a third time if what was added came before the end


class Photographed(dict[str, Any]):
    """Values that call a function when a picture of them is taken."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def items(self) -> Any:
        self.meanwhile()
        return super().items()


def test_a_run_keeps_its_session_until_a_checkpoint_that_another_thread_takes_is_written(
    tmp_path: Path,
) -> None:
    taken: list[str] = []
    begun, ended = Event(), Event()

    def at_the_end(event: Any) -> None:
        if event.kind == "session_ended":
            ctx.state.values = Photographed(lambda: (begun.set(), ended.wait(0.1)))
            taker.start()
            begun.wait(LONG)

    ctx = chain(one, session_id="s", store=tmp_path, observers=[at_the_end]).execution_context
    taker = Thread(target=lambda: taken.append(ctx.checkpoint()[0]))

    ctx.execute()
    ended.set()
    taker.join()

    assert CheckpointManager.resume_from_checkpoint(taken[0])[0].completed_tasks == {"one"}
    assert ctx.home.lease is None


@pytest.mark.parametrize("outside", [True, False], ids=["by its caller", "by a run"])
def test_an_observer_of_a_checkpoint_may_wait_for_another_thread_that_asks_the_session(outside: bool) -> None:
    answered: list[bool] = []

    def look(event: Any) -> None:
        if event.kind == "checkpoint_saved":
            asker = Thread(target=ctx.get_checkpoint_state, daemon=True)
            asker.start()
            asker.join(LONG / 10)
            answered.append(not asker.is_alive())

    def a(context: Any) -> None:
        if outside:
            ctx.checkpoint()

    ctx = chain(a, session_id="s", observers=[look]).execution_context

    ctx.execute()

    assert answered
    assert all(answered)


def test_a_checkpoint_that_was_asked_for_outside_is_taken_first_thing(context: ExecutionContext) -> None:
    context.request_checkpoint({"note": "asked"})
    assert context.checkpoint_requested
    assert context.checkpoint_request_metadata == {"note": "asked"}

    WorkflowEngine().execute(context)

    found = CheckpointManager.list_checkpoints("s", store=context.home.store.url.removeprefix("file://"))
    assert [m.user_metadata for m in found if m.cause == "request"] == [{"note": "asked"}]
    assert not context.checkpoint_requested
    with pytest.raises(NotStorable):
        context.request_checkpoint({"x": object()})


def test_a_plain_unpickling_gives_values_and_graph(context: ExecutionContext) -> None:
    context.get_channel().set("k", (1, 2))
    path, _ = context.checkpoint()

    with open(path, "rb") as file:
        back = pickle.load(file)

    assert (back.session_id, back.start_node, back.get_channel().get("k")) == ("s", "a", (1, 2))
    assert list(back.graph_from_code().nodes) == ["a", "b", "g"]


# --- where a queue and a channel are ----------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "channel", "words"),
    [
        ("kafka", "memory", "queue_backend='kafka' is not available.*There are: memory, redis"),
        ("memory", "kafka", "channel_backend='kafka' is not available"),
        ("memory", "redis", "queue_backend='memory' and channel_backend='redis'"),
        ("redis", "memory", "queue_backend='redis' and channel_backend='memory'"),
    ],
)
def test_backends_that_are_not_there_or_differ_are_refused_by_name(
    queue: str, channel: str, words: str
) -> None:
    with pytest.raises(SessionError, match=words):
        ExecutionContext.create(TaskGraph(), "a", queue_backend=queue, channel_backend=channel)


def test_redis_without_an_address_is_refused_with_the_ways_to_give_one() -> None:
    with pytest.raises(SessionError, match="needs a server") as refusal:
        ExecutionContext.create(TaskGraph(), "a", queue_backend="redis", channel_backend="redis")

    assert all(word in refusal.value.hint for word in ("redis_client", "redis_url", "GRAFLOW_CKPT_REDIS_URL"))


def test_without_the_package_the_extra_to_install_is_named() -> None:
    program = """
import sys
sys.modules["redis"] = None
from graflow_ckpt import ExecutionContext
from graflow_ckpt.core.graph import TaskGraph
try:
    ExecutionContext.create(TaskGraph(), "a", queue_backend="redis", channel_backend="redis")
except Exception as error:
    print(type(error).__name__, error)
"""

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.startswith("PackageMissing A Redis server cannot be used")
    assert "graflow-ckpt[fleet]" in said

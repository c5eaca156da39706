"""Objects that several values share stay one: in a process, after a kill, in a child, after a timeout."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from operator import is_
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt import EveryTask, ExecutionContext, Workflow, task
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.command_line import LONG
from tests.crash.trio_scenarios import MEMORY
from tests.loops import chain, of
from tests.sharing import (
    ACTIONS,
    APPENDS,
    PROGRAMS,
    SGD,
    Killed,
    Node,
    context_of,
    model,
    picture,
    program_of,
    randomly,
    run,
    run_shared,
)
from tests.stretch import stretched


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_killed_at_each_round_it_comes_to_the_same(
    name: str, durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rounds = PROGRAMS[name]()
    whole = run(rounds, durability="none")

    options = {"checkpoint": EveryTask()} if durability == "checkpoint" else {}
    killed = run(rounds, set(range(len(rounds))), durability=durability, **options)

    assert killed == whole
    assert "a checkpoint makes it durable" not in caplog.text  # none has stood in for a record


_MANY = settings.default.max_examples  # of the profile
_numbers = count()
_ACTION = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3), st.integers(0, 3))
_STEPS = st.lists(st.lists(_ACTION, min_size=1, max_size=4), min_size=1, max_size=8)


@given(_STEPS, st.sets(st.integers(0, 9)))
@settings(max_examples=_MANY if _MANY > 100 else 60)
def test_graphs_that_are_rewired_at_random_and_killed_anywhere_come_to_the_same(
    steps: list[list[tuple[str, int, int]]], dies: set[int]
) -> None:
    rounds = randomly(steps)
    whole = run(rounds, durability="none")

    with TemporaryDirectory(dir=MEMORY) as folder:
        killed = run(rounds, dies, durability="journal", store=folder)

    assert killed == whole


# --- tasks of a workflow ---------------------------------------------------------------


def results_flow(dies: set[str], **options: Any) -> Workflow:
    """A model and an optimizer that are results: nothing was ever set."""

    def alive(name: str) -> None:
        if name in dies:
            dies.remove(name)
            raise Killed

    def make(build: Any) -> Any:
        alive("make")
        return SGD(build.edges)

    def train(context: Any) -> None:
        alive(context.task_id)
        context.channel.get("make.__result__").step()

    def forget(context: Any) -> None:
        alive("forget")
        context.channel.set("kept", context.channel.get("build.__result__"))
        context.forget("build")

    def look(context: Any) -> Any:
        alive("look")
        return picture({name: context.channel.get(name) for name in ("kept", "make.__result__")})

    build = task(id="build")(lambda: model())
    return chain(build, make, train, forget, of(train, "more"), look, workflow="results", **options)


def results_as_values(dies: set[str], **options: Any) -> Any:
    try:
        return results_flow(dies, session_id="s", **options).execute()
    except Killed:
        return results_as_values(dies, **options)


def test_results_that_share_stay_one_when_they_are_changed_and_when_one_is_forgotten() -> None:
    whole = results_as_values(set(), durability="none")

    killed = results_as_values({"make", "train", "forget", "more", "look"}, durability="journal")

    assert killed == whole


def training(dies: set[str], body: Callable[[Any], None], **options: Any) -> Any:
    """A model and its optimizer; the `step` between is given, and the look may die first."""
    own = {name: options.pop(name) for name in ("timeout", "max_retries") if name in options}

    def begin(context: Any) -> None:
        made = model()
        context.channel.set("model", made)
        context.channel.set("opt", SGD(made.edges))
        context.channel.set("layer", made.edges[0])

    def again(context: Any) -> None:
        context.channel.get("layer").value += 1.0

    def look(context: Any) -> Any:
        if "look" in dies:
            dies.remove("look")
            raise Killed
        return picture({name: context.channel.get(name) for name in ("model", "opt", "layer")})

    try:
        return chain(begin, of(body, "step", **own), again, look, session_id="s", **options).execute()
    except Killed:
        return training(dies, body, **own, **options)


def one_step(context: Any) -> None:
    context.channel.get("opt").step()


@pytest.mark.parametrize("durability", ["none", "journal"])
def test_after_a_timeout_the_session_keeps_copies_that_share(durability: Any) -> None:
    whole = training(set(), one_step, durability="none")
    release, tries = threading.Event(), []

    def late(context: Any) -> None:
        optimizer = context.channel.get("opt")
        tries.append(optimizer)
        if len(tries) == 1:
            release.wait(LONG)  # past the deadline, and with objects that the session has let go of
        optimizer.step()

    try:
        dies = {"look"} if durability == "journal" else set()
        found = training(dies, late, durability=durability, timeout=stretched(0.5), max_retries=1)
    finally:
        release.set()

    assert found == whole
    assert tries[0] is not tries[1]


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_session_that_went_back_has_values_that_share(durability: Any) -> None:
    whole = training(set(), one_step, durability="none")
    tries: list[int] = []

    def torn(context: Any) -> None:
        optimizer = context.channel.get("opt")
        tries.append(1)
        optimizer.step()
        if len(tries) == 1:
            raise OSError("half way")

    found = training({"look"}, torn, durability=durability, checkpoint=EveryTask(), max_retries=1)

    assert found == whole
    assert len(tries) == 2


def test_a_member_on_loan_to_a_sibling_is_made_durable_by_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    meeting = threading.Barrier(2, timeout=LONG)
    dies = {"look"}

    def begin(context: Any) -> None:
        made = model()
        context.channel.set("model", made)
        context.channel.set("opt", SGD(made.edges))

    def left(context: Any) -> None:
        optimizer = context.channel.get("opt")
        meeting.wait()
        optimizer.step()

    def right(context: Any) -> None:
        made = context.channel.get("model")
        meeting.wait()
        made.value += 1.0

    def run_it(durability: Any) -> Any:
        def look(context: Any) -> Any:
            if durability == "journal" and dies:
                dies.clear()
                raise Killed
            return picture({name: context.channel.get(name) for name in ("model", "opt")})

        return chain(begin, (left, right), look, session_id="s", durability=durability).execute()

    whole = run_it("none")
    with pytest.raises(Killed):
        run_it("journal")

    assert run_it("journal") == whole
    assert any("on loan" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("size", [(1 << 20) - 4096, (1 << 20) - 64, 1 << 20, (1 << 20) + 4096])
def test_about_a_record_s_limit_a_bundle_is_in_a_record_or_in_a_checkpoint(size: int) -> None:
    def begin(channel: Any) -> None:
        made = model()
        made.edges[0].edges.append(b"." * size)
        channel.set("model", made)
        channel.set("opt", SGD(made.edges))
        channel.set("small", Node(1.0))

    def step(channel: Any) -> None:
        channel.get("opt").step()

    def small(channel: Any) -> None:
        channel.get("small").value += 1.0

    def share(channel: Any) -> None:
        channel.get("small").edges.append(channel.get("model").edges[1])

    rounds = [begin, step, small, share, step, small]
    whole = run(rounds, durability="none")

    assert run(rounds, set(range(len(rounds))), durability="journal") == whole


@pytest.mark.parametrize("durability", ["none", "journal"])
def test_what_a_task_is_given_as_data_is_a_copy(durability: Any) -> None:
    seen: list[float] = []
    dies = {"killed"} if durability == "journal" else set()

    def turn(context: Any, data: Any = None) -> None:
        if data is None:
            given = Node(1.0)
            context.channel.set("model", given)
            context.next_iteration(given)
            context.next_task("change", data=None)
            return
        if dies:
            dies.clear()
            raise Killed
        seen.append(data.value)

    def change(context: Any, data: Any = None) -> None:
        context.channel.get("model").value += 1.0

    def run_it() -> None:
        chain(turn, session_id="s", durability=durability).add(of(change, priority=5)).execute("turn")

    try:
        run_it()
    except Killed:
        run_it()

    assert seen == [1.0]


# --- where each attempt has copies ---------------------------------------------------------


@pytest.mark.parametrize("name", ["tied weights", "none and back"])
def test_in_a_process_of_its_own_it_comes_to_the_same(name: str) -> None:
    rounds = PROGRAMS[name]()
    whole = run(rounds, durability="none")

    assert run(rounds, durability="none", isolation="process") == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in APPENDS])
def test_in_a_process_of_its_own_that_fails_in_each_round_it_comes_to_the_same(name: str) -> None:
    rounds = PROGRAMS[name]()
    whole = run(rounds, durability="none")
    every = set(range(len(rounds)))

    found = run(rounds, every, fails=True, durability="journal", isolation="process")

    assert found == whole


@pytest.fixture
def url(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    return redis_url


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in APPENDS])
def test_in_redis_it_comes_to_the_same(name: str, url: str) -> None:
    rounds = PROGRAMS[name]()
    whole = run(rounds, durability="none")

    assert run_shared(url, rounds, set(range(len(rounds)))) == whole


_IN_REDIS = st.tuples(
    st.sampled_from([a for a in ACTIONS if a != "keep"]), st.integers(0, 3), st.integers(0, 3)
)


@given(
    st.lists(st.lists(_IN_REDIS, min_size=1, max_size=4), min_size=1, max_size=8), st.sets(st.integers(0, 9))
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_graphs_that_are_rewired_at_random_come_to_the_same_in_redis(
    url: str, steps: list[list[tuple[str, int, int]]], dies: set[int]
) -> None:
    rounds = randomly(steps)
    whole = run(rounds, durability="none")

    assert run_shared(url, rounds, dies, session=f"s{next(_numbers)}") == whole


def test_results_that_share_stay_one_in_redis(url: str) -> None:
    whole = results_as_values(set(), durability="none")

    assert in_redis_of(url, results_flow(set())).execute() == whole


def test_of_two_that_write_through_two_names_the_second_runs_again(url: str) -> None:
    """With one name each: neither has asked for what the other one writes."""
    meeting, attempts = threading.Barrier(2, timeout=LONG), []

    def begin(context: Any) -> None:
        node = Node(0.0)
        context.channel.set("a", Node(0.0, node))
        context.channel.set("b", Node(0.0, node))

    def write(context: Any) -> None:
        value = context.channel.get(context.task_id)
        attempts.append(context.task_id)
        if len(attempts) <= 2:
            meeting.wait()
        value.edges[0].value += {"a": 1.0, "b": 10.0}[context.task_id]

    def look(context: Any) -> list[float]:
        a, b = context.channel.get("a"), context.channel.get("b")
        return [a.edges[0].value, b.edges[0].value, float(a.edges[0] is b.edges[0])]

    flow = chain(begin, (of(write, "a"), of(write, "b")), look)

    assert in_redis_of(url, flow).execute() == [11.0, 11.0, 1.0]
    assert len(attempts) == 3


def in_redis_of(url: str, flow: Workflow) -> ExecutionContext:
    there: dict[str, Any] = {"queue_backend": "redis", "channel_backend": "redis"}
    return ExecutionContext.create(flow.graph, session_id="s", config={"redis_url": url}, **there)


def test_a_bundle_goes_with_the_last_name_that_was_in_it(url: str) -> None:
    def begin(channel: Any) -> None:
        node = Node(1.0)
        channel.set("a", node)
        channel.set("b", Node(2.0, node))

    def one(channel: Any) -> None:
        channel.set("a", 1)

    def both(channel: Any) -> None:
        channel.set("b", Node(3.0))

    client = redis.Redis.from_url(url)
    found = []
    for rounds in ([begin, one], [begin, one, both]):
        run_shared(url, rounds, set())
        fields = [field.decode() for field in client.hkeys("graflow:{s}:v")]
        found.append(sorted(field[0] for field in fields if not field[1:].startswith("turn")))
        client.flushall()
    client.close()

    assert found == [["#", "#", "*", "=", "=", "~"], ["#", "#", "=", "="]]


@pytest.mark.parametrize("way", ["fork", "rewind", "memory", "into redis"])
def test_where_a_session_goes_what_shares_stays_one(way: str, url: str) -> None:
    rounds = PROGRAMS["tied weights"]()
    whole = run(rounds, durability="none")

    if way == "into redis":
        flow = program_of(rounds, set(), session_id="s")
        flow.execute(max_steps=5)
        path, _ = flow.execution_context.checkpoint(portable=True)
        gone = ExecutionContext.fork(path, "other", redis_url=url)
    else:
        context = context_of(url, rounds, set(), max_steps=5)
        context.execute()
        path, _ = context.checkpoint(portable=True)
        if way == "fork":
            gone = ExecutionContext.fork(path, "other")
        else:
            gone = ExecutionContext.rewind(path) if way == "rewind" else ExecutionContext.resume(path)

    assert gone.execute(max_steps=100) == whole


# --- torch, where it is installed -----------------------------------------------------------


@pytest.mark.parametrize("way", ["journal", "process", "redis"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_model_of_torch_and_its_optimizer_come_to_the_same_bits(
    optimizer: str, tied: bool, way: str, url: str
) -> None:
    torch = pytest.importorskip("torch")

    def begin(channel: Any) -> None:
        torch.manual_seed(1)
        made = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        if tied:
            made[2].weight = made[0].weight
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        channel.set("model", made)
        channel.set("opt", getattr(torch.optim, optimizer)(made.parameters(), lr=0.01, **options))

    def both(channel: Any) -> None:
        made, stepping = channel.get("model"), channel.get("opt")
        stepping.zero_grad()
        (made(torch.ones(4, 8)) ** 2).mean().backward()
        stepping.step()

    def alone(channel: Any) -> None:
        stepping = channel.get("opt")
        for parameter in stepping.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        stepping.step()

    def look(channel: Any) -> None:
        params = list(channel.get("model").parameters())
        stepped = channel.get("opt").param_groups[0]["params"]
        channel.set("same", all(map(is_, params, stepped)))
        channel.set("bits", [param.detach().numpy().tobytes().hex() for param in params])
        channel.set("model", None)
        channel.set("opt", None)

    rounds = [begin, *[both, alone] * (1 if way == "process" else 5), look]
    whole = run(rounds, durability="none")

    dies = set(range(len(rounds)))
    if way == "redis":
        killed = run_shared(url, rounds, dies)
    elif way == "process":  # its first attempt fails in each round, and the child is gone with it
        killed = run(rounds, dies, fails=True, durability="journal", isolation="process")
    else:
        killed = run(rounds, dies, durability="journal")
    assert killed == whole
    assert ["same", "True"] in whole


class Steps:
    def __init__(self, params: list[float]) -> None:
        self.params = params


@pytest.mark.parametrize("together", [False, True])
def test_a_list_that_a_live_value_holds_is_reported_as_kept_apart(
    together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(context: Any) -> None:
        weights = [0.5]
        if together:
            context.get_channel().set("all", {"weights": weights, "steps": Steps(weights)})
        else:
            context.get_channel().set("weights", weights)
            context.get_channel().set("steps", Steps(weights))
            context.get_channel().set("other", [1])

    chain(begin, session_id="s").execute()

    said = [record.getMessage() for record in caplog.records if "kept as a copy" in record.message]
    assert len(said) == (0 if together else 1)
    assert together or said[0].startswith("steps holds an object of weights, which is a plain value")

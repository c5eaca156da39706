"""Loops of `context.rounds`: what is committed of them, and where they continue."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from graflow_ckpt import EveryN, EveryTask, TaskExecutionContext, Workflow, task, workflow
from graflow_ckpt.core import errors
from tests.acceptance.places import Make

Context = TaskExecutionContext
Body = Callable[[Context], Any]


class Module:
    """What has the two methods of a model of torch: its weights are changed in place."""

    def __init__(self) -> None:
        self.weights = np.zeros(4)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights[:] = state["weights"]


class Optimizer:
    """One with momentum, which shares the weights with the model."""

    def __init__(self, module: Module) -> None:
        self.weights, self.speed = module.weights, np.zeros(4)

    def step(self, gradient: Any) -> None:
        self.speed *= 0.9
        self.speed += gradient
        self.weights -= 0.1 * self.speed

    def state_dict(self) -> dict[str, Any]:
        return {"speed": self.speed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.speed[:] = state["speed"]


class Crash(Exception):
    """Raised once for each round that is to fail."""


def train(crashes: dict[int, int], seen: list[int], rounds: int = 10) -> Body:
    """A training loop as people write it; `crashes`: how often it fails after the work of a round."""

    def body(context: Context) -> list[float]:
        noise = [random.gauss(0, 1) for _ in range(4)]
        model = Module()
        optimizer = Optimizer(model)
        for epoch in context.rounds(range(rounds), state={"model": model, "optimizer": optimizer}):
            seen.append(epoch)
            optimizer.step(np.array(noise) + random.random())
            if crashes.get(epoch, 0) > 0:
                crashes[epoch] -= 1
                raise Crash(epoch)
        return [float(weight) for weight in model.weights]

    return body


def flow_of(make: Make, body: Body, session: str = "s", **options: Any) -> Workflow:
    retries = options.pop("retries", 3)
    return make("w", session, **options).add(task(id="train", inject_context=True, max_retries=retries)(body))


def whole(rounds: int = 10) -> tuple[list[float], list[int]]:
    """The result of a run that nothing interrupts."""
    seen: list[int] = []
    random.seed(7)
    return workflow("w").add(task(id="train", inject_context=True)(train({}, seen, rounds))).execute(), seen


def test_each_round_is_committed_and_after_a_failure_the_loop_continues(make: Make) -> None:
    expected, _ = whole()
    random.seed(7)
    seen: list[int] = []

    result = flow_of(make, train({3: 1, 7: 2}, seen), retries=3).execute()

    assert result == expected
    assert seen == [0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8, 9]


def test_retries_are_counted_for_a_round_and_not_for_the_loop(make: Make) -> None:
    seen: list[int] = []
    crashes = dict.fromkeys(range(10), 1)

    flow_of(make, train(crashes, seen), retries=1).execute()

    assert len(seen) == 20


def test_a_round_that_fails_too_often_fails_the_task_and_a_resume_continues_at_it(make: Make) -> None:
    seen: list[int] = []
    crashes = {4: 3}
    flow = flow_of(make, train(crashes, seen), retries=1)

    with pytest.raises(Crash):
        flow.execute()
    flow_of(make, train(crashes, seen), retries=1).execute()

    assert seen == [0, 1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8, 9]


def test_plain_state_is_kept_and_loaded_in_place(make: Make) -> None:
    fails = [True]
    inner: list[Any] = []

    def body(context: Context) -> Any:
        values: dict[str, Any] = {"sum": 0, "of": [1, 2], "array": np.zeros(2)}
        items, array = values["of"], values["array"]
        inner[:] = [items, array]
        losses: list[int] = []
        for number in context.rounds([3, 4, 5], state={"values": values, "losses": losses}):
            values["sum"] += number
            array += number
            items.append(number)
            losses.append(number)
            if number == 4 and fails and fails.pop():
                raise Crash
        assert values["of"] is items
        assert values["array"] is array
        return [values["sum"], items, array.tolist(), losses]

    assert flow_of(make, body).execute() == [12, [1, 2, 3, 4, 5], [12.0, 12.0], [3, 4, 5]]


def test_values_of_the_channel_are_committed_with_the_round(make: Make) -> None:
    fails = [True]

    def body(context: Context) -> Any:
        channel = context.get_channel()
        for number in context.rounds(range(4)):
            channel.set("last", number)
            channel.append("all", number)
            table = channel.get("table", {})
            table[str(number)] = number
            if number == 2 and fails and fails.pop():
                raise Crash
        return [channel.get("last"), channel.get("all"), channel.get("table")]

    assert flow_of(make, body).execute() == [3, [0, 1, 2, 3], {"0": 0, "1": 1, "2": 2, "3": 3}]


def test_what_was_set_stays_the_object_of_the_body_and_later_changes_count(make: Make) -> None:
    def body(context: Context) -> Any:
        channel = context.get_channel()
        table = {"n": 0}
        channel.set("table", table)
        for number in context.rounds(range(3)):
            table["n"] = number + 1
        assert channel.get("table") is table
        return channel.get("table", readonly=True)

    assert flow_of(make, body).execute() == {"n": 3}


def test_live_values_that_were_got_are_committed_with_each_round(make: Make) -> None:
    fails = [True]

    def first(context: Context) -> None:
        context.get_channel().set("array", np.zeros(3))

    def body(context: Context) -> Any:
        array = context.get_channel().get("array")
        for number in context.rounds(range(5)):
            array += number
            if number == 3 and fails and fails.pop():
                raise Crash
        return array.tolist()

    flow = make("w", "s").add(
        task(id="first", inject_context=True)(first)
        >> task(id="second", inject_context=True, max_retries=3)(body)
    )

    assert flow.execute() == [10.0, 10.0, 10.0]


@pytest.mark.parametrize("how", ["thread", "process", "async"])
def test_rounds_run_on_a_thread_in_a_process_and_on_a_loop(make: Make, how: str) -> None:
    flow = make("w", "s").add(KINDS[how])

    assert flow.execute() == [10, [0, 1, 2, 3, 4]]


def _sum(context: Context) -> Any:
    total = {"n": 0}
    for number in context.rounds(range(5), state={"total": total}):
        total["n"] += number
        context.get_channel().append("all", number)
    return [total["n"], context.get_channel().get("all")]


async def _async_sum(context: Context) -> Any:
    total = {"n": 0}
    async for number in context.rounds(range(5), state={"total": total}):
        await asyncio.sleep(0)
        total["n"] += number
        context.get_channel().append("all", number)
    return [total["n"], context.get_channel().get("all")]


KINDS = {
    "thread": task(id="thread", inject_context=True, timeout=60)(_sum),
    "process": task(id="process", inject_context=True, isolation="process")(_sum),
    "async": task(id="async", inject_context=True)(_async_sum),
}


def test_a_plain_for_in_a_coroutine_is_refused(make: Make) -> None:
    async def body(context: Context) -> None:
        for _ in context.rounds(range(3)):
            pass

    with pytest.raises(TypeError, match="async for"):
        flow_of(make, body, retries=0).execute()


# --- items ---------------------------------------------------------------------------------


def looped(items: list[Any], fails_at: int) -> Body:
    """Loops over the first of `items`; fails once, and then loops over the next."""

    def body(context: Context) -> Any:
        found = items[0]
        seen = []
        for item in context.rounds(found() if callable(found) else found, name="loop"):
            seen.append(item)
            if len(items) > 1 and len(seen) > fails_at:
                del items[0]
                raise Crash
        return seen

    return body


def longer() -> Iterator[int]:
    yield from range(6)


@pytest.mark.parametrize(
    ("first", "then", "seen"),
    [
        (range(4), range(6), [2, 3, 4, 5]),
        (range(4), range(0, 6, 1), [2, 3, 4, 5]),
        (["a", "b", "c"], ["a", "b", "d", "e"], ["d", "e"]),
        ([{"a": 1}, {}, {}], [{"a": 1}, {}, {"b": 2}], [{"b": 2}]),
        (longer, longer, [2, 3, 4, 5]),
        ([object(), object(), object()], [1, 2], None),
        (range(4), range(1, 6), None),
        (range(4), [0, 1, 2, 3], None),
        (range(4), range(1), None),
        (["a", "b", "c"], ["b", "a", "c"], None),
        (["a", "b", "c"], ["a"], None),
    ],
)
def test_items_before_the_round_have_to_be_what_they_were(
    make: Make, first: Any, then: Any, seen: list[Any] | None
) -> None:
    flow = flow_of(make, looped([first, then], 2), retries=1)

    if seen is None:
        with pytest.raises(errors.RoundsChanged, match="continue at 2"):
            flow.execute()
    else:
        assert flow.execute() == seen


def test_an_iterable_needs_a_name(make: Make) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(iter([1, 2])):
            pass

    with pytest.raises(
        errors.GraphError, match=r"list_iterator, which is no sequence, and no name.*name='files'"
    ):
        flow_of(make, body, retries=0).execute()


@pytest.mark.parametrize("every", [1, 2, 3, 7, 20])
def test_every_nth_round_is_committed_and_the_last(make: Make, every: int) -> None:
    seen: list[int] = []
    fails = [True]

    def body(context: Context) -> Any:
        total = {"n": 0}
        for number in context.rounds(range(8), every=every, state={"total": total}):
            seen.append(number)
            total["n"] += number
            if number == 6 and fails and fails.pop():
                raise Crash
        return total["n"]

    assert flow_of(make, body).execute() == 28
    begins = 6 // every * every
    assert seen == [*range(7), *range(begins, 8)]


def test_a_loop_knows_its_length_and_where_it_is(make: Make) -> None:
    fails = [True]

    def body(context: Context) -> Any:
        loop = context.rounds("abcd")
        found = []
        for letter in loop:
            found.append((letter, loop.index, loop.first, len(loop), context.idempotency_key))
            if letter == "c" and fails and fails.pop():
                raise Crash
        return found

    result = flow_of(make, body).execute()

    assert [row[:4] for row in result] == [("c", 2, 2, 4), ("d", 3, 2, 4)]
    assert result[0][4].endswith("/train/0/:2")


# --- several loops -------------------------------------------------------------------------


def test_loops_within_loops_continue_where_they_were(make: Make) -> None:
    log: list[tuple[int, int]] = []
    fails = [(1, 1), (2, 0)]

    def body(context: Context) -> Any:
        total = {"n": 0}
        for epoch in context.rounds(range(3), name="epochs", state={"total": total}):
            total["n"] += 100
            for batch in context.rounds(range(3), name="batches"):
                total["n"] += 1
                log.append((epoch, batch))
                if fails and fails[0] == (epoch, batch):
                    del fails[0]
                    raise Crash
        return total["n"]

    assert flow_of(make, body).execute() == 309
    expected = [(epoch, batch) for epoch in range(3) for batch in range(3)]
    assert sorted({*log}) == expected
    assert len(log) == 11


def test_live_state_of_nested_loops_comes_to_the_same(make: Make) -> None:
    fails = [(0, 2), (1, 1), (2, 0)]

    def body(context: Context) -> Any:
        model = Module()
        for epoch in context.rounds(range(3), name="epochs", state={"model": model}):
            model.weights *= 2
            for batch in context.rounds(range(3), name="batches"):
                model.weights += batch + 1
                if fails and fails[0] == (epoch, batch):
                    del fails[0]
                    raise Crash
        return model.weights.tolist()

    assert flow_of(make, body).execute() == [((6 * 2) + 6) * 2 + 6] * 4


def test_one_loop_after_another_needs_a_name_and_continues(make: Make) -> None:
    log: list[str] = []
    fails = [True]

    def body(context: Context) -> Any:
        for number in context.rounds(range(2)):
            log.append(f"a{number}")
        for number in context.rounds(range(2), name="b"):
            log.append(f"b{number}")
            if number == 1 and fails and fails.pop():
                raise Crash
        return "done"

    assert flow_of(make, body).execute() == "done"
    assert log == ["a0", "a1", "b0", "b1", "b1"]


def test_two_loops_without_a_name_are_refused(make: Make) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(range(2)):
            pass
        for _ in context.rounds(range(2)):
            pass

    with pytest.raises(errors.GraphError, match="two loops of rounds without a name"):
        flow_of(make, body, retries=0).execute()


def test_two_loops_at_once_are_refused(make: Make) -> None:
    def body(context: Context) -> None:
        for _ in zip(context.rounds(range(2)), context.rounds(range(2), name="b"), strict=True):
            pass

    with pytest.raises(errors.GraphError, match="begin while those of"):
        flow_of(make, body, retries=0).execute()


def test_a_loop_that_was_left_yields_nothing_once_another_has_committed(make: Make) -> None:
    log: list[str] = []
    fails = [True]

    def body(context: Context) -> Any:
        for number in context.rounds(range(5)):
            log.append(f"a{number}")
            if number == 2:
                break
        for number in context.rounds(range(3), name="b"):
            log.append(f"b{number}")
            if number == 1 and fails and fails.pop():
                raise Crash
        return "done"

    assert flow_of(make, body).execute() == "done"
    assert log == ["a0", "a1", "a2", "b0", "b1", "b1", "b2"]


def test_what_a_break_leaves_open_belongs_to_the_end_of_the_task(make: Make) -> None:
    def body(context: Context) -> Any:
        for number in context.rounds(range(5)):
            context.get_channel().append("all", number)
            if number == 2:
                break
        return context.get_channel().get("all")

    assert flow_of(make, body).execute() == [0, 1, 2]


# --- what else a round does ------------------------------------------------------------------


def test_going_elsewhere_and_then_another_round_is_an_error(make: Make) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(range(3)):
            context.next_iteration()

    with pytest.raises(errors.GraphError, match="Leave the loop first"):
        flow_of(make, body, retries=0).execute()


def test_tasks_that_a_round_asks_for_run_once_each(make: Make) -> None:
    fails = [True]

    def body(context: Context) -> str:
        for number in context.rounds(range(3)):
            context.next_task(note.bind(id=f"note{number}", number=number))
            if number == 1 and fails and fails.pop():
                raise Crash
        return "done"

    flow = flow_of(make, body)
    flow.execute()

    assert sorted(flow.get_channel().get("notes")) == [0, 1, 2]


@task(inject_context=True)
def note(context: Context, number: int) -> None:
    context.get_channel().append("notes", number)


def test_rounds_that_keep_nothing_are_warned_of(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(range(5)):
            pass

    flow_of(make, body).execute()

    assert caplog.text.count("rounds of train keep nothing") == 1


def test_what_a_loop_keeps_ends_with_its_task(make: Make) -> None:
    flow = flow_of(make, train({}, []))
    flow.execute()

    assert [name for name in list(flow.get_channel().keys()) if "__rounds__" in name] == []


@pytest.mark.parametrize("value", [3, "text", None, (1, 2), {1, 2}, object(), random.Random(1)])
def test_state_that_cannot_be_loaded_in_place_is_refused(make: Make, value: Any) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(range(2), state={"value": value}):
            pass

    with pytest.raises(errors.NotStorable, match=r"cannot be loaded in place.*state="):
        flow_of(make, body, retries=0).execute()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": 3}, "name"),
        ({"state": [1]}, "state"),
        ({"state": {3: {}}}, "no name"),
    ],
)
def test_wrong_arguments_are_named(make: Make, options: dict[str, Any], words: str) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(range(2), **options):
            pass

    with pytest.raises(errors.GraflowError, match=words):
        flow_of(make, body, retries=0).execute()


def test_what_load_state_dict_raises_names_the_state(make: Make) -> None:
    class Moody(Module):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("layer4")

    fails = [True]

    def body(context: Context) -> None:
        for number in context.rounds(range(3), state={"model": Moody()}):
            if number == 1 and fails and fails.pop():
                raise Crash

    with pytest.raises(KeyError) as caught:
        flow_of(make, body, retries=1).execute()
    assert "while train.__rounds__:model was loaded" in str(caught.value.__notes__)


# --- checkpoints -----------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "count"), [(EveryN(3), 3), (EveryTask(), 1)])
def test_policies_count_rounds_but_the_one_for_tasks(policy: Any, count: int) -> None:
    causes: list[str] = []

    def body(context: Context) -> None:
        total = {"n": 0}
        for number in context.rounds(range(9), state={"total": total}):
            total["n"] += number

    def watch(event: Any) -> None:
        if event.kind == "checkpoint_saved":
            causes.append(event.facts["cause"])

    flow_of(workflow, body, durability="checkpoint", checkpoint=policy, observers=[watch]).execute()

    assert causes.count("policy") == count


def test_a_checkpoint_that_a_round_asks_for_is_taken_at_its_end(make: Make) -> None:
    handles: list[Any] = []

    def body(context: Context) -> None:
        total = {"n": 0}
        for number in context.rounds(range(3), state={"total": total}):
            total["n"] += number
            if handles:
                assert handles[-1].saved
            handles.append(context.checkpoint({"loss": number}))

    flow_of(make, body).execute()

    assert [handle.metadata.user_metadata["round"] for handle in handles] == [0, 1, 2]
    assert len({handle.path for handle in handles}) == 3


# --- what a body may do with its objects ---------------------------------------------------


def crashing(*at: Any) -> Callable[[Any], None]:
    """Raise Crash once at each of these places."""
    left = [*at]

    def crash(place: Any) -> None:
        if left and left[0] == place:
            del left[0]
            raise Crash(place)

    return crash


@pytest.mark.parametrize("within", [False, True])
def test_state_may_be_a_value_of_the_channel_as_well(make: Make, within: bool) -> None:
    crash = crashing(2, 3)

    def first(context: Context) -> None:
        context.get_channel().set("model", {"array": np.zeros(2)} if within else np.zeros(2))

    def second(context: Context) -> Any:
        model = context.get_channel().get("model")
        array = model["array"] if isinstance(model, dict) else model
        for number in context.rounds(range(5), state={"model": model}):
            array += number
            crash(number)
        return array.tolist()

    bodies = [task(id=body.__name__, inject_context=True, max_retries=5)(body) for body in (first, second)]
    flow = make("w", "s").add(bodies[0] >> bodies[1])

    assert flow.execute() == [10.0, 10.0]


def test_models_and_generators_within_a_dict_are_loaded_in_place(make: Make) -> None:
    crash = crashing(3)

    def body(context: Context) -> Any:
        numbers, dice, nets, seen = (
            np.random.default_rng(0),
            random.Random(0),
            [Module(), Module()],
            set[int](),
        )
        first, second = nets
        drawn: list[float] = []
        state = {"nets": nets, "generators": {"numpy": numbers, "random": dice}, "drawn": drawn}
        for number in context.rounds(range(6), state=state | {"seen": {"numbers": seen}}):
            drawn += [float(numbers.random()), dice.random()]
            first.weights += 1
            second.weights += number
            seen.add(number)
            crash(number)
        return [drawn, first.weights.tolist(), second.weights.tolist(), sorted(seen)]

    numbers, dice = np.random.default_rng(0), random.Random(0)
    expected = [draw for _ in range(6) for draw in (float(numbers.random()), dice.random())]

    assert flow_of(make, body).execute() == [expected, [6.0] * 4, [15.0] * 4, [*range(6)]]


def test_the_round_that_a_break_leaves_open_is_kept_as_it_was_then(make: Make) -> None:
    crash = crashing(2)

    def body(context: Context) -> Any:
        model, total = Module(), {"n": 0}
        for number in context.rounds(range(9), name="a", state={"model": model}):
            model.weights += 1
            random.random()
            if number == 3:
                break
        drawn = random.random()
        model.weights *= 2
        for number in context.rounds(range(4), name="b", state={"total": total}):
            total["n"] += int(model.weights[0])
            crash(number)
        return [model.weights.tolist(), total["n"], drawn]

    random.seed(3)
    expected = [random.random() for _ in range(5)][-1]
    random.seed(3)

    assert flow_of(make, body).execute() == [[8.0] * 4, 32, expected]


def test_what_an_outer_loop_has_kept_is_not_what_the_inner_one_changes(make: Make) -> None:
    crash = crashing((1, 1), (1, 2), (2, 0))

    def body(context: Context) -> Any:
        model: dict[str, Any] = {}
        for epoch in context.rounds(range(4), state={"model": model}):
            model.setdefault("weights", np.ones(1))
            base = model["weights"].copy()
            for batch in context.rounds(range(3), name="batches"):
                model["weights"] += base
                crash((epoch, batch))
        return model["weights"].tolist()

    assert flow_of(make, body, retries=9).execute() == [256.0]


def test_a_loop_with_every_has_none_within(make: Make) -> None:
    def body(context: Context) -> None:
        for _ in context.rounds(range(4), every=2, name="epochs"):
            for _ in context.rounds(range(2), name="batches"):
                pass

    with pytest.raises(errors.GraphError, match="every=2 has another one within"):
        flow_of(make, body, retries=0).execute()


def test_names_of_loops_and_of_what_they_keep_do_not_meet(make: Make) -> None:
    crash = crashing(1)

    def body(context: Context) -> Any:
        one, other = {"n": 0}, {"n": 100}
        for _ in context.rounds(range(3), state={"x.m": one, "x": {}}):
            one["n"] += 1
        for number in context.rounds(range(3), name="x", state={"m": other}):
            other["n"] += 1
            crash(number)
        return [one["n"], other["n"]]

    assert flow_of(make, body).execute() == [3, 103]


def test_going_elsewhere_in_the_last_round_is_no_other_round(make: Make) -> None:
    def body(context: Context) -> int:
        for number in context.rounds(range(3)):
            context.get_channel().append("seen", number)
            if number == 2 and context.cycle == 0:
                context.next_iteration()
        return context.cycle

    flow = flow_of(make, body)

    assert flow.execute() == 1
    assert flow.get_channel().get("seen") == [0, 1, 2, 0, 1, 2]


def test_a_coroutine_that_is_cancelled_while_it_waits_keeps_what_it_sets_then(make: Make) -> None:
    async def body(context: Context) -> Any:
        loop = context.rounds(range(9))
        walk = aiter(loop)
        await anext(walk)
        context.get_channel().append("seen", 0)
        asking = asyncio.ensure_future(anext(walk))
        await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        context.get_channel().set("after", 1)
        return context.get_channel().get("after")

    flow = flow_of(make, body, retries=0)

    assert flow.execute() == 1
    assert flow.get_channel().get("after") == 1


def test_a_first_failure_in_the_first_round_does_not_take_a_later_rounds_retries(make: Make) -> None:
    crash = crashing(0, 4)

    def first(context: Context) -> None:
        context.get_channel().set("array", np.zeros(1))

    def second(context: Context) -> Any:
        array = context.get_channel().get("array")
        for number in context.rounds(range(6)):
            array += number
            crash(number)
        return array.tolist()

    bodies = [task(id=body.__name__, inject_context=True, max_retries=1)(body) for body in (first, second)]

    assert make("w", "s").add(bodies[0] >> bodies[1]).execute() == [15.0]

"""A session with large values, as its user sees it: saves grow by what has changed, and all of them load.

Results that nobody needs any more leave the session, and nothing is made up in their place.
"""

from __future__ import annotations

import json
import pickle
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import graflow_ckpt
from graflow_ckpt import Budget, CheckpointManager, ExecutionContext, KeepLast
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, ResultForgotten, UnknownTask
from graflow_ckpt.engine import cuts as engine_cuts
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.drivers.objects.bucket import Bucket
from graflow_ckpt.stores.drivers.objects.names import place_of
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.command_line import KILLED, graflow, program
from tests.acceptance.places import Make, rows_of
from tests.loops import LONG, chain, cuts, of
from tests.loops import loop as loop_of
from tests.servers import Server
from tests.trios import all_of, contents_of, writer
from tests.unit.stores.faults import FaultyDisk

ROWS = 50_000


@pytest.fixture(params=["sqlite:///{}/runs.db", "{}/runs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def taken(folder: Path) -> int:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def trained(place: str, steps: int) -> list[str]:
    """The paths of the checkpoints, one after each step."""
    paths = []

    def step(context) -> None:
        model = context.get_channel().get("model")
        model["head"] += 1
        model["log"].append(context.cycle)
        paths.append(context.checkpoint({"step": context.cycle}))

    flow = loop_of(steps, step, store=place, keep=KeepLast(100))
    flow.get_channel().set("model", {"frozen": np.ones((ROWS, 20)), "head": np.zeros(10), "log": []})
    flow.execute()
    return [pending.path for pending in paths]


def test_every_checkpoint_of_a_loop_loads_with_the_values_of_its_step(place: str, tmp_path: Path) -> None:
    paths = trained(place, 4)

    for number, path in enumerate(paths):
        context = graflow_ckpt.load(path)
        assert isinstance(context, ExecutionContext)
        model = context.get_channel().get("model")
        assert (model["head"] == number + 1).all()
        assert model["frozen"].sum() == ROWS * 20
        assert model["log"] == list(range(number + 1))
        assert CheckpointManager.verify(path).user_metadata["step"] == number
    resumed, _ = CheckpointManager.resume_from_checkpoint(paths[1])
    assert (resumed.get_channel().get("model")["head"] == 2).all()


@pytest.mark.parametrize("place", ["sqlite:///{}/runs.db"], indirect=True)
def test_what_does_not_change_is_stored_once_and_goes_with_the_last_that_holds_it(
    place: str, tmp_path: Path
) -> None:
    paths = trained(place, 5)
    folder = tmp_path / "runs" if "runs.db" not in place else tmp_path

    assert taken(folder) < 2.5 * ROWS * 20 * 8  # the array once; SQLite may have it in its log, too
    store = paths[0].rpartition("/")[0]
    CheckpointManager.cleanup_old_checkpoints(1, store=store)
    left = CheckpointManager.list_checkpoints("s", store=store)
    assert len(left) == 1
    assert graflow_ckpt.load(left[0].path).get_channel().get("model")["frozen"].sum() == ROWS * 20
    assert open_store(store).delete(left[0].path)
    assert contents_of(open_store(store)).sweep() == 0
    assert not list(folder.glob("*contents/*"))


def test_in_a_bucket_a_session_stores_once_what_does_not_change(
    objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    paths = trained(objects_url, 4)
    bucket = Bucket(place_of(objects_url))

    assert sum(entry.size for entry in bucket.list("data")) < 1.5 * ROWS * 20 * 8
    for number, path in enumerate(paths):
        model = graflow_ckpt.load(path).get_channel().get("model")
        assert (model["head"][0], model["frozen"].sum()) == (number + 1, ROWS * 20)
    CheckpointManager.cleanup_old_checkpoints(1, store=objects_url)
    (left,) = CheckpointManager.list_checkpoints("s", store=objects_url)
    assert graflow_ckpt.load(left.path).get_channel().get("model")["frozen"].sum() == ROWS * 20
    assert open_store(objects_url).delete(left.path)
    assert list(bucket.list("data")) == []


def test_a_folder_keeps_plain_pickles(tmp_path: Path) -> None:
    (path,) = trained(f"{tmp_path}/runs", 1)

    with open(path, "rb") as file:
        assert pickle.load(file).get_channel().get("model")["frozen"].sum() == ROWS * 20
    assert not list((tmp_path / "runs").glob("*contents*"))


def test_a_folder_that_is_to_share_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="which folders do not have") as refused:
        open_store(f"file://{tmp_path}/runs?share=true")

    assert "sqlite:///" in refused.value.hint


def test_a_trio_of_a_folder_that_shared_is_refused_by_name(tmp_path: Path) -> None:
    """Such as an earlier commit wrote: the meta names contents, and the pickle lacks them."""
    (path,) = trained(f"sqlite:///{tmp_path}/runs.db", 1)
    store = open_store(path.rpartition("/")[0])
    own = LocalStore(tmp_path / "runs")
    stage = json.loads(store.meta(path))["stage"]
    parts = [(part, writer(all_of(store.open(path, part, stage)))) for part in ("pkl", "state.json")]
    there = str(tmp_path / "runs" / path.rpartition("/")[2])
    own.put(f"{there}.pkl", [*parts, ("meta.json", writer(store.meta(path)))], lease=None, stage=stage)

    with pytest.raises(CheckpointCorrupt, match=r"shares 1 values with others .* share=true"):
        graflow_ckpt.load(f"{there}.pkl")


# --- results that nobody needs any more -------------------------------------------------


BIG = 200_000


def extract() -> bytes:
    return bytes(BIG)


def test_a_result_that_was_forgotten_is_refused_by_name_and_its_task_stays_completed(workflow: Make) -> None:
    def count(context, extract: bytes) -> int:
        context.forget("extract")
        return len(extract)

    def late(context, count: int) -> str:
        with pytest.raises(ResultForgotten, match="The result of 'extract' was asked for by 'late'"):
            context.get_result("extract")
        with pytest.raises(ResultForgotten):
            context.get_channel().get("extract.__result__")
        return f"{count} bytes"

    flow = chain(extract, count, late, make=workflow)

    assert flow.execute() == "200000 bytes"
    assert flow.execution_context.completed_tasks == {"extract", "count", "late"}


def test_a_task_that_fails_has_forgotten_nothing(workflow: Make) -> None:
    tries: list[int] = []

    def count(context, extract: bytes) -> int:
        context.forget("extract")
        tries.append(len(extract))
        if len(tries) == 1:
            raise OSError("once")
        return len(extract)

    assert chain(extract, count, make=workflow, max_retries=1).execute() == BIG
    assert tries == [BIG, BIG]


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_checkpoints_are_without_it_and_what_goes_on_from_them_does_not_have_it(
    tmp_path: Path, durability: str
) -> None:
    def run(mended: bool) -> object:
        def first(context) -> bytes:
            context.checkpoint()
            return bytes(BIG)

        extracting = of(first, "extract")

        def count(context, extract: bytes) -> int:
            context.forget(extracting)
            if durability == "checkpoint":
                context.checkpoint()
            return len(extract)

        def late(context, count: int) -> int:
            if not mended:
                context.get_result("extract")
            return count

        return chain(
            extracting, count, late, session_id="s", store=str(tmp_path), durability=durability
        ).execute()

    with pytest.raises(ResultForgotten):
        run(mended=False)
    result = run(mended=True)

    assert result == BIG
    sizes = [found.size for found in CheckpointManager.list_checkpoints("s", store=str(tmp_path))]
    assert sizes[0] < BIG < max(sizes)  # the newest first; one was taken while it was needed


def test_only_tasks_of_the_graph_can_be_forgotten() -> None:
    def one(context) -> None:
        context.forget("two")

    with pytest.raises(UnknownTask, match="'two'"):
        chain(one).execute()


# --- durable by default -----------------------------------------------------------------


loop = partial(loop_of, durability="auto")
PAGE = Path("docs/sessions.md").resolve()
MIB = 1 << 20

# Three tasks with results of a size; killed in the third one, once.
THREE = """
import os, sys
from graflow_ckpt import task, workflow

SIZE = int(sys.argv[1])

with workflow("three", *sys.argv[2:3]) as ctx:

    @task
    def one():
        print("one runs", flush=True)
        return os.urandom(SIZE)

    @task
    def two(one):
        print("two runs", flush=True)
        return {sys.argv[3]}

    @task
    def three(two):
        print("three runs", flush=True)
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        return len(two)

    one >> two >> three
    print("result", ctx.execute())
"""

# A model that changes each round, killed at the start of a round, once.
MODEL = """
import os
from graflow_ckpt import task, workflow

class Model:
    def __init__(self):
        self.weights = bytearray(3 << 20)
        self.rounds = []

with workflow("train", "s") as ctx:

    @task(inject_context=True)
    def turn(context):
        model = context.get_channel().get("model", default=None) or Model()
        if context.cycle == 5 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        print("round", context.cycle, flush=True)
        model.rounds.append(context.cycle)
        model.weights[context.cycle] = 1
        context.get_channel().set("model", model)
        if context.cycle < 8:
            context.next_iteration()
        return model.rounds

    ctx.add(turn)
    print("result", ctx.execute())
"""


def three(size: int, *arguments: str, two: str = "os.urandom(SIZE)") -> tuple[str, str]:
    """What two runs print, the first of which is killed in the third task."""
    program("three.py", THREE.replace("{sys.argv[3]}", two))
    first = graflow("run", "three.py", "--", str(size), *arguments, status=KILLED)
    second = graflow("run", "three.py", "--", str(size), *arguments)
    assert f"result {size}" in second.out
    return first.out, second.out


def a_session_with_an_id(request: pytest.FixtureRequest) -> None:
    _, again = three(10, "s")

    assert again.split("\n")[0] == "three runs"


def a_result_or_value_of_more_than_one_mebibyte(request: pytest.FixtureRequest) -> None:
    for number, two in enumerate(("os.urandom(SIZE)", "bytearray(os.urandom(SIZE))")):
        Path("killed").unlink(missing_ok=True)

        _, again = three(3 * MIB, f"s{number}", two=two)

        assert again.split("\n")[0] == "three runs"


def a_large_value_that_changes_again_and_again(request: pytest.FixtureRequest) -> None:
    program("train.py", MODEL)
    graflow("run", "train.py", status=KILLED)

    planned = graflow("plan", "s")
    ended = graflow("run", "train.py")

    assert "'model'" in planned.out + planned.err
    assert "result [0, 1, 2, 3, 4, 5, 6, 7, 8]" in ended.out
    assert "round 5" in ended.out
    assert "round 0" not in ended.out  # the first change was saved, by the credit
    by_budget = [meta for meta in CheckpointManager.list_checkpoints("s") if meta.cause == "budget"]
    assert 1 <= len(by_budget) <= 2


def a_run_without_an_id(request: pytest.FixtureRequest) -> None:
    first, second = three(10)

    assert first == "one runs\ntwo runs\nthree runs\n"
    assert second.startswith(first)
    assert not Path("checkpoints").exists()


def grow(context) -> None:
    """A new large value, live and nobody else's."""
    context.get_channel().set("large", [bytearray(2 * MIB), context.cycle])


def a_task_that_must_not_run_twice(request: pytest.FixtureRequest) -> None:
    saved: list[list[int]] = []

    def pay(context) -> int:
        grow(context)
        saved.append(cuts("budget"))
        if context.cycle < 3:
            context.next_iteration()
        return context.cycle

    flow = chain(pay, on_interrupted="skip", session_id="s", durability="auto")

    assert flow.execute() == 3
    assert [steps[-1:] for steps in saved] == [[], [1], [2], [3]]


def a_record_that_cannot_be_written(request: pytest.FixtureRequest) -> None:
    disk = FaultyDisk()
    flow = loop(
        5, lambda context: disk.arm("sync_data") if context.cycle == 2 else None,
        store=LocalStore("checkpoints", disk=disk),
    )  # fmt: skip

    assert flow.execute() == 4

    assert cuts("budget") == [3]


def a_long_journal(request: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_cuts, "LONGEST", 10)

        assert loop(60).execute() == 59

    assert len(cuts("budget")) == 2
    assert cuts("budget")[-1] >= 40


def a_written_durability(request: pytest.FixtureRequest) -> None:
    assert loop_of(3, durability="checkpoint").execute() == 2

    assert cuts("journal") == cuts("budget") == []
    assert list(Path("checkpoints").glob(".s.*.journal")) == []


def keep_at(url: str) -> None:
    """A loop there, of which no journal is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAFLOW_CKPT_KEY", new_key())
        flow = loop(3, grow, store=url)

        assert flow.execute() == 2

        assert list(flow.execution_context.home.store.segments("s")) == []
        assert "budget" in {meta.cause for meta in CheckpointManager.list_checkpoints("s", store=url)}


def a_bucket(request: pytest.FixtureRequest) -> None:
    keep_at(request.getfixturevalue("objects_url"))


def a_server_that_confirms_early(request: pytest.FixtureRequest) -> None:
    with Server() as server:
        keep_at(server.url)


CASES = {
    "a session with an id": a_session_with_an_id,
    "a result or value of more than 1 MiB": a_result_or_value_of_more_than_one_mebibyte,
    "a large value that changes again and again": a_large_value_that_changes_again_and_again,
    "a run without an id": a_run_without_an_id,
    "a task with `on_interrupted` other than `rerun`": a_task_that_must_not_run_twice,
    "a record that cannot be written": a_record_that_cannot_be_written,
    "a long journal": a_long_journal,
    "a bucket": a_bucket,
    "a server that confirms what is not on its disk": a_server_that_confirms_early,
    "a durability that is written": a_written_durability,
}


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_the_page(case: str, request: pytest.FixtureRequest) -> None:
    CASES[case](request)


def test_the_page_has_these_cases() -> None:
    assert rows_of(PAGE, "Durable by default") == [*CASES]


def test_without_the_checkpoint_that_closed_a_gap_the_session_stands_before_it() -> None:
    text = MODEL.replace('set("model", model)', 'set("model", model) if context.cycle == 4 else None')
    program("train.py", text)
    graflow("run", "train.py", status=KILLED)
    (saved,) = [meta for meta in CheckpointManager.list_checkpoints("s") if meta.cause == "budget"]
    Path(saved.path).write_bytes(b"spoilt")

    context = loop(4).execution_context

    assert saved.steps == 5
    assert context.steps == 4
    assert context.state.gap is not None
    assert context.state.gap[0] == "model"


def test_a_checkpoint_that_waits_for_a_loan_holds_tasks_back_for_its_budget_alone() -> None:
    done = threading.Event()
    order: list[str] = []

    def long(context):
        held = context.get_channel().get("held", default=[object])
        assert done.wait(LONG)
        return len(held)

    def quick(context):
        grow(context)
        order.append("quick")
        if context.cycle < 3:
            context.next_iteration()
        else:
            done.set()

    flow = in_memory("w", "s", max_parallel=2).add(of(long), of(quick))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_cuts, "Budget", lambda: Budget(0.05, credit=0.2))
        flow.execute()

    assert order == ["quick"] * 4

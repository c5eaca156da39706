"""A session with large values, as its user sees it: saves grow by what has changed, and all of them load.

Results that nobody needs any more leave the session, and nothing is made up in their place.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import graflow_ckpt
from graflow_ckpt import CheckpointManager, ExecutionContext, KeepLast, task, workflow
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, ResultForgotten, UnknownTask
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.drivers.objects.bucket import Bucket
from graflow_ckpt.stores.drivers.objects.names import place_of
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.places import Make
from tests.trios import all_of, contents_of, writer

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
    with workflow("train", "train", store=place, keep=KeepLast(100)) as flow:
        flow.get_channel().set("model", {"frozen": np.ones((ROWS, 20)), "head": np.zeros(10), "log": []})

        @task(inject_context=True)
        def step(context):  # type: ignore[no-untyped-def]
            model = context.get_channel().get("model")
            model["head"] += 1
            model["log"].append(context.cycle)
            paths.append(context.checkpoint({"step": context.cycle}))
            if context.cycle < steps - 1:
                context.next_iteration()

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
    left = CheckpointManager.list_checkpoints("train", store=store)
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
    (left,) = CheckpointManager.list_checkpoints("train", store=objects_url)
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


def test_a_result_that_was_forgotten_is_refused_by_name_and_its_task_stays_completed(workflow: Make) -> None:
    with workflow("w") as flow:

        @task
        def extract() -> bytes:
            return bytes(BIG)

        @task(inject_context=True)
        def count(context, extract: bytes) -> int:
            context.forget("extract")
            return len(extract)

        @task(inject_context=True)
        def late(context, count: int) -> str:
            with pytest.raises(ResultForgotten, match="The result of 'extract' was asked for by 'late'"):
                context.get_result("extract")
            with pytest.raises(ResultForgotten):
                context.get_channel().get("extract.__result__")
            return f"{count} bytes"

        extract >> count >> late
        assert flow.execute() == "200000 bytes"

    assert flow.execution_context.completed_tasks == {"extract", "count", "late"}


def test_a_task_that_fails_has_forgotten_nothing(workflow: Make) -> None:
    tries: list[int] = []

    with workflow("w") as flow:

        @task
        def extract() -> int:
            return 5

        @task(inject_context=True, max_retries=1)
        def count(context, extract: int) -> int:
            context.forget("extract")
            tries.append(extract)
            if len(tries) == 1:
                raise OSError("once")
            return extract

        extract >> count
        assert flow.execute() == 5

    assert tries == [5, 5]


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_checkpoints_are_without_it_and_what_goes_on_from_them_does_not_have_it(
    tmp_path: Path, durability: str
) -> None:
    def run(mended: bool) -> tuple[object, list[str]]:
        with in_memory("w", "s", store=str(tmp_path), durability=durability) as flow:

            @task(inject_context=True)
            def extract(context) -> bytes:
                context.checkpoint()
                return bytes(BIG)

            @task(inject_context=True)
            def count(context, extract: bytes) -> int:
                context.forget(extract_task)
                if durability == "checkpoint":
                    context.checkpoint()
                return len(extract)

            extract_task = extract

            @task(inject_context=True)
            def late(context, count: int) -> int:
                if not mended:
                    context.get_result("extract")
                return count

            extract >> count >> late
            return flow.execute(), [
                m.path for m in CheckpointManager.list_checkpoints("s", store=str(tmp_path))
            ]

    with pytest.raises(ResultForgotten):
        run(mended=False)
    result, paths = run(mended=True)

    assert result == BIG
    sizes = [CheckpointManager.verify(path).size for path in paths]
    assert sizes[0] < BIG < max(sizes)  # the newest first; one was taken while it was needed


def test_only_tasks_of_the_graph_can_be_forgotten() -> None:
    with in_memory("w") as flow:

        @task(inject_context=True)
        def one(context) -> None:
            context.forget("two")

        with pytest.raises(UnknownTask, match="'two'"):
            flow.execute()

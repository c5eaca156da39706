"""Sessions whose checkpoints are in a bucket: killed and resumed, found, verified, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, task, workflow
from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.stores.keys import new_key
from graflow_ckpt.stores.objects import ObjectStore
from tests.acceptance.command_line import COUNT, KILLED, graflow, program, python
from tests.acceptance.test_redis_checkpoints import TRAIN
from tests.object_servers import CREDENTIALS, ObjectServer


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The address of a store whose server the environment names, as it is in production."""
    with ObjectServer() as server:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.host}:{server.port}")
        yield server.url.partition("?")[0]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    found = new_key()
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", found)
    return found


def counting(url: str, limit: int, **options: Any) -> Any:
    with workflow("count", session_id="s", store=url, **options) as ctx:

        @task(inject_context=True)
        def count(context: Any, data: int = 0) -> int:
            context.get_channel().set("n", data + 1)
            if data + 1 < limit:
                context.next_iteration(data + 1)
            return data + 1

        return ctx.execute()


def test_a_killed_training_goes_on_from_its_trio_in_a_bucket(bucket: str, key: str) -> None:
    script = program("train.py", TRAIN)

    assert python(script, bucket, "4", status=KILLED).out == ""
    assert python(script, bucket, "7", status=KILLED).out == ""
    done = python(script, bucket, "-1")

    assert done.out == f"result {sum(epoch + 0.5 for epoch in range(10))}\n"
    assert [int(line) for line in Path("epochs.log").read_text().split()] == list(range(10))
    assert not Path("checkpoints").exists()
    assert python(script, bucket, "-1").out == done.out  # and is finished


def test_a_journal_in_a_bucket_loses_no_committed_task(bucket: str, key: str) -> None:
    store = ["--store", bucket, "--session", "s", "--durability", "journal"]
    script = program("count.py", COUNT)

    graflow("run", *store, script, "--", "4", status=None)
    graflow("run", *store, script, "--", "none")

    assert Path("steps.log").read_text().split() == ["0", "1", "2", "3", "4", "4", "5"]


def test_a_checkpoint_is_resumed_by_its_path_from_anywhere(bucket: str, key: str) -> None:
    assert counting(bucket, 5, checkpoint=EveryTask()) == 5
    cuts = CheckpointManager.list_checkpoints("s", store=bucket)
    third = next(cut for cut in cuts if cut.steps == 3)
    assert third.path.startswith(f"{bucket}/session_s_step_3_")
    assert (third.home, third.synced) == (bucket, True)

    context, metadata = CheckpointManager.resume_from_checkpoint(third.path)

    assert (metadata.steps, context.steps, context.get_channel().get("n")) == (3, 3, 3)
    assert context.execute() == 5
    assert CheckpointManager.verify(CheckpointManager.get_latest("s", store=bucket)).epoch == 2


def test_a_session_on_disk_may_have_a_checkpoint_in_a_bucket(bucket: str, key: str) -> None:
    with workflow("named", session_id="s", store="here") as ctx:

        @task
        def one() -> int:
            return 1

        ctx.execute()
        context = ctx.execution_context
    path, metadata = CheckpointManager.create_checkpoint(context, f"{bucket}/best.pkl")

    assert (path, metadata.home) == (f"{bucket}/best", f"file://{Path('here').absolute()}")
    assert [cut.path for cut in CheckpointManager.list_checkpoints(f"{bucket}/b*")] == [f"{bucket}/best"]
    resumed, _ = CheckpointManager.resume_from_checkpoint(f"{bucket}/best")
    assert resumed.execute() == 1


def test_what_is_not_there_is_not_found(bucket: str, key: str) -> None:
    with pytest.raises(CheckpointNotFound, match="none not found"):
        CheckpointManager.resume_from_checkpoint(f"{bucket}/none")
    with pytest.raises(CheckpointNotFound, match="has no checkpoint"):
        CheckpointManager.get_latest("s", store=bucket)
    assert CheckpointManager.list_checkpoints(store=bucket) == []


def test_old_checkpoints_are_cleaned_up(bucket: str, key: str) -> None:
    counting(bucket, 6, checkpoint=EveryTask())

    assert CheckpointManager.cleanup_old_checkpoints(2, store=bucket) > 0

    assert len(CheckpointManager.list_checkpoints("s", store=bucket)) == 2
    assert len(ObjectStore(bucket)._all.heads.read("s").head.commits) == 2


def test_a_bucket_needs_a_key_that_all_have(bucket: str) -> None:
    with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_KEY"):
        counting(bucket, 2)

    assert list(ObjectStore(bucket).list()) == []

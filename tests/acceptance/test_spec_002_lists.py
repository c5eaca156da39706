"""What the checkpoint/resume design names: lists of checkpoints, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, TaskExecutionContext, TaskGraph, task, workflow
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound, SchemaUnsupported, SessionError


@task
def first() -> str:
    return "first"


@task(inject_context=True)
def asks(context: TaskExecutionContext) -> str:
    context.checkpoint()
    return "asks"


# --- lists ------------------------------------------------------------------------------


def three(session: str) -> list[str]:
    with workflow("lists", session) as flow:
        flow.add(asks)
        flow.execute(max_steps=1)
        return [flow.execution_context.checkpoint()[0] for _ in range(3)]


def test_checkpoints_are_listed_newest_first_by_session_and_by_pattern() -> None:
    paths, others = three("one"), three("two")

    assert [m.path for m in CheckpointManager.list_checkpoints("one")][:3] == paths[::-1]
    assert {m.session_id for m in CheckpointManager.list_checkpoints()} == {"one", "two"}
    found = [m.path for m in CheckpointManager.list_checkpoints("checkpoints/session_two_*.pkl")]
    assert found[:3] == others[::-1]
    assert found == [
        m.path for m in CheckpointManager.list_checkpoints(path_pattern="checkpoints/session_two_*")
    ]


def test_the_session_that_was_saved_last_is_listed_first() -> None:
    three("long")
    with workflow("lists", "short") as flow:
        flow.add(asks)
        flow.execute()

    listed = [m.session_id for m in CheckpointManager.list_checkpoints()]

    assert listed == sorted(listed, reverse=True)
    assert listed[0] == "short"


def test_the_newest_checkpoint_of_a_session_is_found() -> None:
    paths = three("one")

    assert CheckpointManager.get_latest("one") == paths[-1]
    with pytest.raises(CheckpointNotFound, match="Session other has no checkpoint"):
        CheckpointManager.get_latest("other")


def test_old_checkpoints_are_cleaned_up_when_asked_for() -> None:
    paths = three("one")
    before = len(CheckpointManager.list_checkpoints("one"))

    gone = CheckpointManager.cleanup_old_checkpoints(keep_last_n=2)

    assert gone == before - 2
    assert [m.path for m in CheckpointManager.list_checkpoints("one")] == paths[:0:-1]
    assert not os.path.exists(paths[0])


# --- what is refused --------------------------------------------------------------------


def edited(path: str, part: str, change: dict[str, object]) -> None:
    file = Path(path.removesuffix(".pkl") + part)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def test_a_schema_of_the_future_is_refused_with_the_documented_text() -> None:
    path = three("one")[-1]
    edited(path, ".meta.json", {"schema_version": "7.0"})

    with pytest.raises(
        SchemaUnsupported, match=r"Unsupported checkpoint schema version: 7\.0\. Supported: \['1\.0'\]"
    ):
        CheckpointManager.resume_from_checkpoint(path)
    with pytest.raises(ValueError, match="Migration required"):
        ExecutionContext.load(path)


@pytest.mark.parametrize("part", [".pkl", ".state.json"])
def test_a_missing_companion_is_named(part: str) -> None:
    path = three("one")[-1]
    os.unlink(path.removesuffix(".pkl") + part)

    with pytest.raises(CheckpointCorrupt, match=f"lacks its companion .*{part}"):
        CheckpointManager.resume_from_checkpoint(path)


def test_a_checkpoint_that_is_not_there_is_said_to_be_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pkl"):
        CheckpointManager.resume_from_checkpoint("nowhere.pkl")


def test_backends_that_this_version_lacks_are_refused_by_name() -> None:
    graph = TaskGraph()
    graph.add(first)

    for backend in ({"queue_backend": "redis"}, {"channel_backend": "redis"}, {"queue_backend": "kafka"}):
        with pytest.raises(SessionError, match=r"redis|kafka"):
            ExecutionContext.create(graph, "first", **backend)
    context = ExecutionContext.create(graph, "first")
    with pytest.raises(ValueError, match="ftp"):
        CheckpointManager.resume_from_checkpoint("ftp://bucket/session_1.pkl")
    with pytest.raises(ValueError, match="ftp"):
        context.checkpoint("ftp://bucket/session_1.pkl")
    assert os.listdir() == []


def test_a_url_of_a_local_file_is_its_path() -> None:
    context = ExecutionContext.create(TaskGraph(), "first")
    context.graph.add(first)

    context.checkpoint(f"file://{os.getcwd()}/mine.pkl")

    assert os.path.exists("mine.pkl")
    assert ExecutionContext.load(f"file://{os.getcwd()}/mine.pkl").session_id == context.session_id

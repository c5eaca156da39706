"""What is said while a session runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graflow_ckpt.cli import progress
from graflow_ckpt.cli.progress import JsonLines, PlainLines, Reporter, Tally, reporter_for
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.events import Event, Kind

START = {
    "workflow": "w", "store": "checkpoints", "pending": 1, "path": None, "resumed": False, "replayed": 0,
    "completed": 0, "max_steps": None, "kept": True,
}  # fmt: skip


def event(kind: Kind, at: int, task: str = "", **facts: Any) -> Event:
    return Event(kind, "s", 0.0, at, task, facts)


def nothing(tally: Tally) -> None:
    """Nobody is mentioned."""


def told_by(reporter: Reporter, *events: Event) -> None:
    for one in events:
        reporter(one)


def ended(status: str, reason: str = "", resume: str = "graflow-ckpt resume s") -> Event:
    return event("session_ended", 4, status=status, reason=reason, resume=resume)


def begun(**start: Any) -> Event:
    return event("session_started", 0, **{**START, **start})


LOST = event("checkpoint_failed", 2, error="full", cause="policy")
KEPT = event("checkpoint_saved", 4, path="p.pkl", cause="failure")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([begun(saved=True)], "new; if it is interrupted: graflow-ckpt resume s"),
        ([begun(recorded=True)], "new; if it is interrupted: graflow-ckpt resume s"),
        ([begun(saved=True, store="x")], "graflow-ckpt resume s --store x"),
        ([begun()], "new; nothing is saved before its first checkpoint"),
        (
            [begun(kept=False)],
            "new; a checkpoint is made only if it is stopped or fails (--every, --session)",
        ),
        (
            [begun(resumed=True, path="p.pkl", line="session s continues")],
            "graflow-ckpt: session s continues",
        ),
        ([begun(), ended("completed")], "completed after 4 steps (4 in this run"),
        (
            [begun(), ended("stopped", reason="max_steps=4 reached")],
            "graflow-ckpt resume s --max-steps 8",
        ),
        ([begun(), ended("cancelled")], "cancelled after 4 steps"),
        ([begun(), LOST, ended("completed")], "1 checkpoint could not be saved"),
        ([begun(), KEPT, ended("failed")], "go on with: graflow-ckpt resume s\n"),
        (
            [event("session_finished", 4, **START, line="session s was finished")],
            "graflow-ckpt: session s was finished\n",
        ),
    ],
)
def test_a_start_and_an_end_are_lines(
    capsys: pytest.CaptureFixture[str], events: list[Event], said: str
) -> None:
    told_by(PlainLines(Manner(), nothing), *events)

    assert said in capsys.readouterr().err


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_a_session_with_nothing_to_go_on_from_names_no_command(
    capsys: pytest.CaptureFixture[str], status: str
) -> None:
    told_by(PlainLines(Manner(), nothing), begun(), KEPT, ended(status, resume=""))

    assert "resume" not in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("progress", [True, False])
def test_an_interrupted_session_is_told_by_the_engine_alone(
    capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    told_by(PlainLines(Manner(), nothing, progress=progress), begun(), ended("interrupted"))

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_many_checkpoints_in_a_second_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    saves = [event("checkpoint_saved", step, path=f"p{step}", cause="policy") for step in range(1, 200)]

    told_by(PlainLines(Manner(), nothing), begun(), *saves, ended("completed"))

    assert 3 <= len(capsys.readouterr().err.splitlines()) < 10


def test_progress_lines_are_few(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    reporter = PlainLines(Manner(), nothing)
    reporter(begun())
    for step in range(1, 112):
        now += 0.1  # eleven seconds in all
        reporter(event("task_started", step - 1, "a"))
        reporter(event("task_progress", step - 1, "a", done=step, total=200))
        reporter(event("task_ended", step, "a", outcome="done", pending=1))

    lines = [line for line in capsys.readouterr().err.splitlines() if "running" in line]
    assert len(lines) == 2
    assert "a 50/200" in lines[0]


def test_without_progress_there_is_a_start_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    save = event("checkpoint_saved", 1, path="p", cause="policy")

    reporter = PlainLines(Manner(), nothing, progress=False)
    told_by(reporter, begun(), save, ended("completed"))

    assert len(capsys.readouterr().err.splitlines()) == 2


def test_unfinished_ones_are_mentioned_at_a_fresh_start_only() -> None:
    mentioned: list[str] = []
    reporter = PlainLines(Manner(), lambda tally: mentioned.append(tally.session))

    told_by(
        reporter, event("session_started", 2, **{**START, "resumed": True, "path": "p"}), ended("completed")
    )
    assert mentioned == []

    told_by(reporter, begun())
    assert mentioned == ["s"]


def test_a_session_that_went_back_is_not_announced_again(capsys: pytest.CaptureFixture[str]) -> None:
    resumed = event("session_started", 2, **{**START, "resumed": True, "path": "p", "line": "s continues"})
    back = event("session_went_back", 4, "a", step=2, path="p")

    told_by(PlainLines(Manner(), nothing), resumed, event("task_started", 2, "a"), back, resumed)

    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "continues" in line] == lines[:1]
    assert lines[1].endswith("went back to step 2")


def test_json_is_one_document_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    manner = Manner()
    manner.json = True

    told_by(JsonLines(manner, nothing), begun(), event("task_started", 0, "a"))

    told = capsys.readouterr()
    documents = [json.loads(line) for line in told.out.splitlines()]
    assert [document["event"] for document in documents] == ["session_started", "task_started"]
    assert documents[1] == {"event": "task_started", "session": "s", "time": 0.0, "step": 0, "task": "a"}
    assert told.err == ""


def test_on_a_pipe_lines_are_plain_and_with_json_they_are_documents() -> None:
    manner = Manner()
    assert type(reporter_for(manner, nothing, progress=True)) is PlainLines

    manner.json = True
    assert type(reporter_for(manner, nothing, progress=True)) is JsonLines


# --- tallies ----------------------------------------------------------------------------


BEGUN = {"workflow": "w", "store": "checkpoints", "pending": 1, "path": None}


def tallied(*events: Event) -> Tally:
    tally = Tally(event("session_started", 0, **BEGUN))
    for one in events:
        tally.add(one)
    return tally


def test_what_runs_is_not_pending() -> None:
    tally = tallied(
        event("task_started", 0, "a"),
        event("task_ended", 1, "a", outcome="done", pending=5),
        event("task_started", 1, "b"),
        event("task_started", 1, "b"),
        event("task_started", 1, "c"),
    )

    assert tally.running == {"b": 2, "c": 1}
    assert tally.counts.startswith("1 done, 3 running, 2 pending, ")


def test_a_bar_goes_when_it_is_full() -> None:
    tally = tallied(
        event("task_started", 0, "a"),
        event("task_progress", 0, "a", done=3, total=10),
        event("task_ended", 1, "a", outcome="done", pending=1),
    )
    assert tally.bars == {"a": (3, 10)}, "a loop comes round"

    tally.add(event("task_started", 1, "a"))
    tally.add(event("task_progress", 1, "a", done=10, total=10))
    tally.add(event("task_ended", 2, "a", outcome="done", pending=0))

    assert tally.bars == {}
    assert tally.running == {}


def test_a_bar_without_a_total_goes_with_its_task() -> None:
    tally = tallied(
        event("task_started", 0, "a"),
        event("task_progress", 0, "a", done=3, total=None),
        event("task_ended", 1, "a", outcome="done", pending=1),
    )

    assert tally.bars == {}


def test_saves_and_failed_saves_are_counted() -> None:
    tally = tallied(
        event("checkpoint_saved", 3, path="p1", cause="policy"),
        event("checkpoint_saved", 6, path="p2", cause="policy"),
        event("checkpoint_failed", 9, error="full", cause="policy"),
    )

    assert (tally.saved, tally.failed_saves, tally.saved_path) == (2, 1, "p2")
    assert tally.last_save is not None
    assert tally.last_save[1] == 6


def test_a_session_that_goes_back_has_nothing_running() -> None:
    tally = tallied(
        event("task_started", 4, "a"),
        event("session_went_back", 4, "a", step=2, path="p"),
        event("session_started", 2, **{**BEGUN, "pending": 3}),
    )

    assert (tally.step, tally.pending, tally.running) == (2, 3, {})
    assert tally.rate >= 0


def test_the_end_is_what_the_document_says() -> None:
    tally = tallied(event("session_ended", 4, status="stopped", reason="max_steps=4 reached"))

    assert tally.document() | {"seconds": 0} == {
        "session": "s", "workflow": "w", "status": "stopped", "steps": 4, "pending": 1, "checkpoints": 0,
        "last_checkpoint": None, "seconds": 0,
    }  # fmt: skip

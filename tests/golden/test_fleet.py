"""What stood in the Redis of a fleet: today's code lists it, shows it, and works at it to the right end.

The sessions are of make_fleet.py. One pool of today's workers is started on all of them; each body leaves a
line when it begins. Code that is stored by value is run by the minor version of Python that stored it; any
other one leaves such a session to others, which it says, and runs those whose code it finds by name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import graflow_ckpt
from graflow_ckpt import CheckpointManager
from tests.chaos.pools import Pool, pools
from tests.golden.make_fleet import BY_REFERENCE, CALLS, DELAYED, FLOWS, FOLDER, load
from tests.golden.make_sessions import HERE, KEY_FILE
from tests.servers import Server

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
FILES = sorted(FOLDER.glob("*.jsonl"))

STOOD = {
    "asked": "running", "by_reference": "running", "cancelled": "cancelled", "claimed": "running",
    "done": "completed", "failed": "failed", "kept": "running", "loop": "stopped", "made": "running",
    "paused": "paused", CALLS: "completed", DELAYED: "running", "values": "running", "waiting": "running",
}  # fmt: skip
"""The status of each session when it was written."""

RUN_NOW = {
    "asked": {"charge": 1}, "by_reference": {"later": 1, "slow": 1, "ends": 1}, "cancelled": {},
    "claimed": {"held": 1}, "done": {}, "failed": {"broken": 1, "after": 1}, "kept": {"kept_it": 1},
    "loop": {"learn": 4}, "made": {"made_0": 1, "made_1": 1, "made_2": 1, "right": 1, "joined": 1},
    "paused": {"first": 1, "last": 1}, CALLS: {}, DELAYED: {"square": 1}, "values": {"look": 1},
    "waiting": {"begin": 1},
}  # fmt: skip
"""How often each body has to run after that: what was committed is not run again."""

RESULTS = {
    "asked": 201, "by_reference": [{"first": 1}, 2], "claimed": 101, "done": {"first": 1, "sum": 1},
    "failed": {"broken": 11}, "kept": 10, "loop": 5, "made": {"left": 3, "right": 32, "made_2": 20},
    "paused": {"first": 1, "sum": 1}, "waiting": [4, 1],
    "values": {
        "array": True, "function": 42, "large": True, "log": True, "plain": True, "put": True, "shared": True
    },
}  # fmt: skip

BY_NAME = {session: session in {*BY_REFERENCE, DELAYED} for session in STOOD}
"""Whether the code of a session was found by its name, as another Python can do."""


@dataclass
class Scene:
    """A server with the sessions in it: how they stood, and what came of them."""

    file: Path
    url: str
    folder: Path
    shown: dict[str, Any] = field(default_factory=dict)
    runs: Counter[tuple[str, ...]] = field(default_factory=Counter)

    @property
    def own(self) -> bool:
        """Whether this Python may open the code that is stored in it."""
        return self.file.stem == PYTHON

    def command(self, *command: str) -> Any:
        """The document that a command of today prints."""
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "GRAFLOW_CKPT_REDIS_URL": self.url}
        ended = subprocess.run(
            [sys.executable, "-m", "graflow_ckpt", *command, "--json"],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.stem)
def stood(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Before any worker is there."""
    folder = tmp_path_factory.mktemp("golden")
    shutil.copyfile(FLOWS, folder / FLOWS.name)
    with pytest.MonkeyPatch.context() as patch, Server() as server:
        patch.setenv("GRAFLOW_CKPT_KEY", KEY_FILE.read_text().strip())
        patch.setenv("GOLDEN_RUNS", str(folder / "runs"))
        load(server.client(), request.param.read_text())
        scene = Scene(request.param, server.url, folder)
        for command in ("sessions", "status by_reference", "failed list", "checkpoints list kept"):
            where = ("--store" if "checkpoints" in command else "--url", server.url)
            scene.shown[command] = scene.command(*command.split(), *where)
        yield scene


@pytest.fixture(scope="module")
def ended(stood: Scene) -> Iterator[Scene]:
    """After workers of today have worked until nothing is left that they can do."""
    key = KEY_FILE.read_text().strip()
    settings = {"key": key, "workers": "2", "queues": "default,gpu,slow", "code_patience": "0.2s"}
    fleet = graflow_ckpt.connect(stood.url)
    fleet.session("failed").resume()
    fleet.session("paused").resume()
    fleet.session("loop").resume(max_steps=50)
    with pools(Pool("pool", stood.url, stood.folder, **settings)):
        assert fleet.session("asked").wait(20).status == "paused"
        if stood.own:
            fleet.session("asked").answer("charge", "rerun")
        for session in STOOD:
            fleet.session(session).wait(20)
        stood.runs = Counter(tuple(line.split()) for line in (stood.folder / "runs").read_text().splitlines())
        yield stood
    fleet.close()


def test_each_minor_version_has_written_one() -> None:
    assert [file.stem for file in FILES] == ["python3.11", "python3.13"]
    assert set(STOOD) == set(RUN_NOW) == {*RESULTS, "cancelled", CALLS, DELAYED}


# --- as it stood -----------------------------------------------------------------------


def test_the_command_line_lists_each_session_as_it_stood(stood: Scene) -> None:
    rows = stood.shown["sessions"]

    assert {row["session"]: row["status"] for row in rows} == STOOD
    assert [row["session"] for row in rows][:3] == ["cancelled", "paused", DELAYED]  # the newest first


def test_the_command_line_shows_what_waits_in_which_queue(stood: Scene) -> None:
    shown = stood.shown["status by_reference"]

    assert shown["queues"] == {"default": 0, "gpu": 1, "slow": 1}
    assert (shown["steps"], shown["ready"], shown["tokens"]) == (1, 2, 2)


def test_the_command_line_lists_what_has_failed(stood: Scene) -> None:
    rows = stood.shown["failed list"]

    assert [(row["session"], row["task"], row["type"]) for row in rows] == [
        (CALLS, "square[1]", "ValueError"), ("failed", "broken", "ValueError"),
    ]  # fmt: skip


def test_a_checkpoint_in_the_same_redis_is_listed_shown_and_verifies(stood: Scene) -> None:
    (row,) = stood.shown["checkpoints list kept"]

    shown = stood.command("checkpoints", "show", row["path"])
    verified = CheckpointManager.verify(row["path"])

    assert shown["state"]["completed_tasks"] == ["keeps"]
    assert (verified.session_id, verified.steps, verified.status) == ("kept", 1, "running")
    assert {"loss": 0.5, "by": "task", "task_id": "keeps"}.items() <= verified.user_metadata.items()


# --- worked at -------------------------------------------------------------------------


@pytest.mark.parametrize("session", STOOD)
def test_a_session_ends_as_it_must_and_nothing_runs_twice(ended: Scene, session: str) -> None:
    handle = graflow_ckpt.connect(ended.url).session(session)
    ran = {task: count for (where, task), count in ended.runs.items() if where == session}

    if ended.own or BY_NAME[session] or STOOD[session] == "completed":
        assert handle.status().status == ("cancelled" if session == "cancelled" else "completed")
        assert ran == RUN_NOW[session]
        if session in RESULTS:
            assert handle.result(0) == RESULTS[session]
    else:
        assert handle.status().status == "paused"
        assert ran == {}
        assert session == "asked" or "code of workflow" in handle.reason()


def test_results_of_calls_are_read_with_the_class_that_travelled_with_them(ended: Scene) -> None:
    handle = graflow_ckpt.connect(ended.url).session(CALLS)

    assert [(failure.task, failure.message) for failure in handle.failures().values()] == [
        ("square[1]", "two")
    ]
    if ended.own:
        one, two, three = handle.results(0)
        assert (one.x, one.y, two, three.x, three.y) == (1, [1], None, 3, [9])

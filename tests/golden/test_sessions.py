"""What an older commit wrote into folders: today's code lists, verifies, shows, loads and continues it.

The sessions are of make_sessions.py. With its program each Python continues each of them; code that is
stored by value is opened by the minor version that stored it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import graflow_ckpt
from graflow_ckpt import CheckpointManager
from tests.golden.make_sessions import HERE, KEY_FILE, NUMBER

HERE_AND_NOW = f"python{sys.version_info[0]}.{sys.version_info[1]}"
ALL = sorted(path for path in (HERE / f"sessions-{NUMBER}").glob("python*/*"))
WITH_CODE_ALONE = {"code"}
"""Their values are functions without a name: no program has them."""

AFTER_THE_KILL = {"claimed": {"doubtful": "skipped", "sum": 1}}
"""Where that is another result than without a kill."""

LAST_TASK = {"claimed": "last", "code": "call", "failed": "after", "groups": "joined", "values": "look"}

NEWEST = {
    "claimed": (2, 1), "code": (1, 1), "failed": (2, 1), "forked": (1, 5), "groups": (2, 1), "loop": (3, 5),
    "named": (3, 9), "rewound": (4, 8), "rewound_journal": (4, 5), "rewound_now": (2, 5), "segments": (3, 5),
    "torn": (3, 5), "values": (1, 1),
}  # fmt: skip
"""Number and steps of the checkpoint that the session continues from."""


@pytest.fixture(params=ALL, ids=lambda path: f"{path.parent.name}-{path.name}")
def session(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of one session, with the modes that it had, and its name as the folder's name."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", KEY_FILE.read_text().strip())
    place = tmp_path / request.param.name
    shutil.copytree(request.param, place)
    for path in (place, *place.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(place)
    return place


def own_code(session: Path) -> bool:
    """Whether this Python may open the code that is stored with it."""
    return f"[{HERE_AND_NOW}-" in os.environ["PYTEST_CURRENT_TEST"]


def python(*command: str) -> subprocess.CompletedProcess[str]:
    packages = {"PYTHONPATH": str(HERE.parents[1])}
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, **packages}, capture_output=True, text=True, timeout=60
    )


def expected(session: Path) -> Any:
    found = json.loads((session / "expected.json").read_text())
    return AFTER_THE_KILL.get(session.name, found)


def trios(session: Path) -> list[str]:
    return sorted(str(path) for path in session.rglob("*.pkl"))


def test_every_kind_of_session_is_there() -> None:
    assert {path.name for path in ALL if path.parent.name == "python3.11"} == set(NEWEST)
    assert HERE_AND_NOW != "python3.13" or {path.name for path in ALL if path.parent.name == HERE_AND_NOW}


def test_its_checkpoints_are_listed_and_verify(session: Path) -> None:
    listed = CheckpointManager.list_checkpoints(session.name)
    newest = CheckpointManager.verify(CheckpointManager.get_latest(session.name))

    own = [path for path in trios(session) if f"session_{session.name}_step" in path]
    assert sorted(str(session / metadata.path) for metadata in listed) == own
    assert (newest.session_id, newest.sequence, newest.steps) == (session.name, *NEWEST[session.name])
    for path in trios(session):
        assert CheckpointManager.verify(path).library == "0.1.0"


def test_the_metadata_that_a_user_gave_are_there(session: Path) -> None:
    if session.name == "named":
        assert CheckpointManager.verify("best.pkl").user_metadata == {"loss": 0.5, "by": "name"}
    elif session.name == "values":
        said = CheckpointManager.verify(CheckpointManager.get_latest("values")).user_metadata
        assert (said["loss"], said["tags"], said["task_id"]) == (0.25, ["a", {"b": None}], "put")


def test_the_command_line_lists_and_shows_it(session: Path) -> None:
    listed = python("-m", "graflow_ckpt", "checkpoints", "list", "--session", session.name, "--json")
    path = CheckpointManager.get_latest(session.name)
    shown = python("-m", "graflow_ckpt", "checkpoints", "show", path, "--json")

    assert listed.returncode == shown.returncode == 0, listed.stderr + shown.stderr
    assert path in listed.stdout
    assert f'"{session.name}"' in shown.stdout


def test_its_program_continues_it_to_the_right_result(session: Path) -> None:
    shutil.copyfile(HERE / "flows.py", "flows.py")

    ended = python("flows.py", session.name)

    if session.name in WITH_CODE_ALONE and not own_code(session):
        assert refused_by_name(ended)
    else:
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == expected(session)
        assert CheckpointManager.verify(CheckpointManager.get_latest(session.name)).status == "completed"


def test_its_stored_code_continues_it_without_the_program(session: Path) -> None:
    ended = python("-m", "graflow_ckpt", "resume", session.name, "--no-progress")

    if own_code(session) or session.name == "named":  # which is finished
        newest = CheckpointManager.get_latest(session.name)
        assert ended.returncode == 0, ended.stderr
        assert CheckpointManager.verify(newest).status == "completed"
    else:
        assert refused_by_name(ended)
    if own_code(session):
        assert graflow_ckpt.load(newest).get_result(LAST_TASK.get(session.name, "told")) == expected(session)


def refused_by_name(ended: subprocess.CompletedProcess[str]) -> bool:
    """Code of another Python ends no process, and is not run at all."""
    return ended.returncode > 0 and "Python 3" in ended.stderr and "has stored" in ended.stderr


def test_a_checkpoint_of_it_is_loaded_and_continued_by_its_path(session: Path) -> None:
    if not own_code(session):
        pytest.skip("its code is of another Python")
    path = CheckpointManager.get_latest(session.name)

    loaded = graflow_ckpt.load(path)

    assert loaded.session_id == session.name
    if "weights" in loaded.channel:
        assert loaded.channel.get("weights").shape == (8,)

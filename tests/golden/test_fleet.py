"""What an older commit wrote into folders: today's code lists, verifies, shows, loads and continues it.

Sessions in folders were written by commit 9023819, those of a fleet by 55b29496, by Python 3.11 and 3.13 (by
tests/golden/make_*.py as of f93b0439). With its program each Python continues each of them; code that is
stored by value is opened by the minor version that stored it. The key seals nothing else.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import graflow_ckpt
from graflow_ckpt import CheckpointManager
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.stores.around.keys import Keyring
from tests.pools import Pool, directly, surroundings
from tests.servers import Server

HERE = Path(__file__).parent
KEY_FILE = HERE / "sessions-1" / "key"
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
ALL = sorted(path for path in (HERE / "sessions-1").glob("python*/*"))
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
    return f"[{PYTHON}-" in os.environ["PYTEST_CURRENT_TEST"]


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
    assert PYTHON != "python3.13" or {path.name for path in ALL if path.parent.name == PYTHON}


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
    ring = Keyring.load()
    for meta in session.rglob("*.meta.json"):  # they name /tmp/golden/flows.py, which somebody may have
        found = json.loads(meta.read_text()) | {"file": str(session / "gone.py")}
        meta.write_text(json.dumps(seal(found, ring)))

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


# --- what stood in the Redis of a fleet -------------------------------------------------


FILES = sorted((HERE / "fleet-1").glob("*.jsonl"))
FLOWS = HERE / "fleet_flows.py"
CALLS, DELAYED = "square-calls-f62d242cedd2", "square-delayed-219d268cae77"
BY_REFERENCE = ("failed", "kept", "by_reference", "claimed", "delayed", "paused", "cancelled")

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


def load(client: Any, text: str) -> None:
    """Into an empty server: commands, one a line; words are texts, or deflated where they are not ASCII."""
    pipe = client.pipeline(transaction=False)
    for line in text.splitlines():
        words = json.loads(line)
        pipe.execute_command(
            *(zlib.decompress(base64.b64decode(w["deflated"])) if isinstance(w, dict) else w for w in words)
        )
    pipe.execute()


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
    given = surroundings(key=KEY_FILE.read_text().strip())
    command = directly(stood.url, n=2, queues=("default", "gpu", "slow"), code_patience=0.2)
    fleet = graflow_ckpt.connect(stood.url)
    fleet.session("failed").resume()
    fleet.session("paused").resume()
    fleet.session("loop").resume(max_steps=50)
    with Pool(stood.url, stood.folder, given, command):
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

"""Bad input: each gives one clear error with what to do and an exit status, and nothing is lost.

Through the real command line in a process of its own, on a session that was really killed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.command_line import KILLED, graflow, python

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

PROGRAM = """
import os, sys
from graflow_ckpt import task, workflow

with workflow("count", session_id="s", durability="checkpoint") as ctx:

    @task(inject_context=True)
    def step(context):
        n = context.channel.get("n", 0) + 1
        context.channel.set("n", n)
        context.checkpoint({"n": n})
        if n == 4 and not os.path.exists("calm"):
            os.kill(os.getpid(), 9)
        if n < 6:
            context.next_iteration()
        return n

    print("result", ctx.execute("step"))
"""


@pytest.fixture(autouse=True)
def warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a session that was killed after three checkpoints."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "program.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        python("program.py", status=KILLED)
    assert len(list((folder / "checkpoints").glob("*.meta.json"))) == 3
    (folder / "calm").touch()
    return folder


@pytest.fixture
def session(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be damaged; the working folder."""
    monkeypatch.chdir(shutil.copytree(killed, tmp_path / "session"))
    return tmp_path / "session"


def newest(folder: Path, number: int = 3) -> Path:
    return next((folder / "checkpoints").glob(f"session_s_step_{number}_*.pkl"))


def part(path: Path, name: str) -> Path:
    return path.with_name(path.name.removesuffix("pkl") + name)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def resize(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def swap(path: Path, other: Path) -> None:
    keep = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(keep)


def newer_schema(path: Path) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema_version": "7.0"}))


Damage = Callable[[Path], None]
DAMAGES: dict[str, Damage] = {
    "values truncated": lambda p: resize(p, p.stat().st_size // 2),
    "values with a flipped bit": flip,
    "values empty": lambda p: resize(p, 0),
    "values enormous": lambda p: resize(p, 1 << 40),
    "values missing": lambda p: p.unlink(),
    "facts truncated": lambda p: resize(part(p, "state.json"), 100),
    "facts with a flipped bit": lambda p: flip(part(p, "state.json")),
    "facts empty": lambda p: resize(part(p, "state.json"), 0),
    "facts enormous": lambda p: resize(part(p, "state.json"), 1 << 40),
    "facts missing": lambda p: part(p, "state.json").unlink(),
    "meta truncated": lambda p: resize(part(p, "meta.json"), 100),
    "meta with a flipped bit": lambda p: flip(part(p, "meta.json")),
    "meta empty": lambda p: resize(part(p, "meta.json"), 0),
    "meta enormous": lambda p: resize(part(p, "meta.json"), 1 << 40),
    "values swapped with another cut's": lambda p: swap(p, newest(p.parent.parent, 2)),
    "facts swapped with another cut's": lambda p: swap(
        part(p, "state.json"), part(newest(p.parent.parent, 2), "state.json")
    ),
    "a newer schema": lambda p: newer_schema(part(p, "meta.json")),
    "values that everybody can write": lambda p: p.chmod(0o666),
    "meta that everybody can write": lambda p: part(p, "meta.json").chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cut_is_refused_by_path_and_passed_over_by_session(session: Path, damage: Damage) -> None:
    path = newest(session)
    damage(path)

    named = graflow("resume", str(path.relative_to(session)), status=1)
    again = graflow("resume", "s")

    assert "Traceback" not in named.err
    assert path.stem in named.err
    assert named.err.strip().count("\n") < 6, named.err
    assert "result 6" in again.out  # from the cut before it
    assert path.stem in again.err  # which says what was passed over


def test_no_cut_that_verifies_is_never_a_fresh_start(session: Path) -> None:
    for path in (session / "checkpoints").glob("*.pkl"):
        flip(path)
        flip(part(path, "state.json"))

    again = graflow("resume", "s", status=1)
    direct = python("program.py", status=1)

    assert "none of them verifies" in again.err
    assert "Traceback" not in again.err
    assert "NoGoodCheckpoint" in direct.err


@pytest.mark.parametrize("bad", ["a/b", "..", "../x", "", "x" * 65, "ü", "a b"])
def test_a_bad_session_id_is_a_usage_error(session: Path, bad: str) -> None:
    refused = graflow("run", "program.py", "--session", bad, status=2)

    assert "is not a session id" in refused.err
    assert "result" not in refused.out
    assert "Traceback" not in refused.err
    assert not list(session.parent.glob("*.lock"))


def program(body: str, *, settings: str = "") -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return (
        "import os, threading\nfrom graflow_ckpt import task, workflow\n"
        f'with workflow("w", session_id="s"{settings}) as ctx:\n'
        f"    @task(inject_context=True)\n    def step(context):\n{lines}\n"
        '    ctx.execute("step")\n    print("done")\n'
    )


UNSTORABLE = {
    "a channel value": ('context.channel.set("box", {"a": [1, threading.Lock()]})', "box"),
    "a result": ("return {'lock': threading.Lock()}", "lock"),
    "metadata": ('context.checkpoint({"when": object()})', "metadata['when']"),
}


@pytest.mark.parametrize(("body", "path"), UNSTORABLE.values(), ids=UNSTORABLE)
def test_what_cannot_be_kept_is_refused_with_the_path_to_it(tmp_path: Path, body: str, path: str) -> None:
    (tmp_path / "program.py").write_text(program(body))

    refused = graflow("run", "program.py", status=1)

    assert path in refused.err
    assert "NotStorable" in refused.err or "cannot be" in refused.err

"""Writes the sessions of a released version into sessions-N, once: `python -m tests.golden.make_sessions`.

sessions-1 was written by commit 9023819, before anything in the formats was changed. Code that is stored by
value can be opened by the minor version of Python that stored it, and by no other. So the oldest supported
minor wrote all of them, and a newer one wrote those with much code in them once more:

    python3.11 -m tests.golden.make_sessions
    python3.13 -m tests.golden.make_sessions values code loop groups

Sessions are made by programs (flows.py) that are killed, resumed, rewound and forked as a user would do it.
What is stored is what they left, but for `torn`, whose journal has lost the end of its last record. They run
in /tmp/golden, because paths stand in what is sealed. The key beside the sessions seals nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBER = 1
KEY_FILE = HERE / f"sessions-{NUMBER}" / "key"
PLACE = Path("/tmp/golden")
KILLED = -9
HOST = """
import os
found = list(os.uname())
found[1] = "golden"
os.uname = lambda: os.uname_result(found)
"""


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a program: nothing of this machine."""
    packages = os.environ.get("PYTHONPATH", str(HERE.parents[1]))
    path = f"{Path(sys.executable).parent}:{os.defpath}"  # programs are started by name, which is in locks
    own = {"PATH": path, "HOME": str(PLACE / "home"), "PYTHONPATH": f"{PLACE / 'home'}:{packages}"}
    return {**own, "GRAFLOW_CKPT_KEY": KEY_FILE.read_text().strip(), **more}


def call(*command: str, expected: int = 0, **more: str) -> str:
    """Run Python in the folder; its output."""
    environment = surroundings(**more)
    python = ["python", *command]
    ended = subprocess.run(python, cwd=PLACE, env=environment, capture_output=True, text=True)
    assert ended.returncode == expected, (command, ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout


def run(name: str) -> Any:
    return json.loads(call("flows.py", name))


def kill(name: str, *places: str) -> None:
    """Run a program, kill it at the first place, run it again, kill it at the second one."""
    for place in places:
        call("flows.py", name, expected=KILLED, GOLDEN_KILL=place)


def rewind(name: str, sequence: int, place: str) -> None:
    """Let a session come to its last task, go back to a checkpoint, and be killed at `place`."""
    kill(name, "told")
    (path,) = PLACE.glob(f"checkpoints/*-{sequence}.pkl")
    call(
        *("-m", "graflow_ckpt", "resume", str(path.relative_to(PLACE)), "--rewind", "--no-progress"),
        expected=KILLED, GOLDEN_KILL=place,
    )  # fmt: skip


def tear(name: str) -> None:
    kill(name, "learn 6")
    newest = max(PLACE.glob("checkpoints/.*.journal"), key=lambda path: int(path.name.split(".")[3]))
    records = newest.read_bytes().rstrip(b"\0")
    newest.write_bytes(records[:-7].ljust(newest.stat().st_size, b"\0"))


def fork(name: str) -> None:
    kill("origin", "learn 6")
    call("-m", "graflow_ckpt", "checkpoints", "fork", "origin", name)
    kill(name, "told")


SESSIONS: dict[str, Callable[[str], object]] = {
    "values": lambda name: kill(name, "look"),
    "code": lambda name: kill(name, "call"),
    "loop": lambda name: kill(name, "learn 6"),
    "segments": lambda name: kill(name, "learn 3", "learn 6"),
    "torn": tear,
    "rewound": lambda name: rewind(name, 2, "told"),
    "rewound_now": lambda name: rewind(name, 2, "learn 5"),
    "rewound_journal": lambda name: rewind(name, 2, "learn 6"),
    "forked": fork,
    "named": run,
    "claimed": lambda name: kill(name, "doubtful"),
    "failed": lambda name: call("flows.py", name, expected=1, GOLDEN_BROKEN="1"),
    "groups": lambda name: kill(name, "made_1"),
}


def empty() -> None:
    """An empty folder with the program in it."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "home").mkdir(parents=True)
    (PLACE / "home" / "sitecustomize.py").write_text(HOST)
    shutil.copyfile(HERE / "flows.py", PLACE / "flows.py")


def main(names: list[str]) -> None:
    target = HERE / f"sessions-{NUMBER}" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if target.exists():
        raise SystemExit(f"{target} is there already; what was released is not written again")
    for name in names:
        empty()
        expected = run(name)  # without an interruption
        empty()
        SESSIONS[name](name)
        shutil.rmtree(PLACE / "home")
        (PLACE / "flows.py").unlink()
        shutil.copytree(PLACE, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        (target / name / "expected.json").write_text(json.dumps(expected, sort_keys=True) + "\n")
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SESSIONS))

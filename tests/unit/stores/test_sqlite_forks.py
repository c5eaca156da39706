"""A database and processes that fork: SQLite must not take a child's connections for those of its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

CLOSES = """
import os, subprocess, sys
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.testing.trios import listed, put
store = SqliteStore(sys.argv[1])
put(store, "parent", "one")
told, tells = os.pipe(), os.pipe()
if not os.fork():
    put(store, "first", "one")
    os.write(told[1], b"1")
    os.read(tells[0], 1)
    put(store, "second", "one", size=300_000)
    os._exit(0)
os.read(told[0], 1)
store.close()
os.write(tells[1], b"1")
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(*listed(SqliteStore(sys.argv[1])))
"""

USES = """
import os, sys, threading
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.stores import sqlite_file
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.testing.trios import listed, put
sqlite_file._GRACE = 0.01
store, began, ends = SqliteStore(sys.argv[1]), threading.Event(), threading.Event()
put(store, "parent", "one")

def use():
    with store._database.writing():
        began.set()
        ends.wait(20)

thread = threading.Thread(target=use)
thread.start()
began.wait(20)
if not os.fork():
    put(SqliteStore(sys.argv[1] + ".other"), "child", "one")
    try:
        put(store, "child", "one")
    except CheckpointError as error:
        os._exit(0 if "when it was forked" in str(error) else 2)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
ends.set()
thread.join()
put(store, "after", "one")
print(*listed(store))
"""


def run(program: str, file: Path) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def test_what_a_forked_child_saves_is_there_when_its_parent_has_let_go(tmp_path: Path) -> None:
    assert run(CLOSES, tmp_path / "x.db") == ["second", "first", "parent"]


def test_a_child_that_is_forked_while_a_thread_uses_the_file_is_refused_it_by_name(tmp_path: Path) -> None:
    assert run(USES, tmp_path / "x.db") == ["0", "after", "parent"]

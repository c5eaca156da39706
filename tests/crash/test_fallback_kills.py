"""A process is killed while its store is away, or while it hands over: the next one has every save.

Real processes, and a real server that goes away and comes back with what it had confirmed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import new_key
from tests.servers import Server

pytestmark = pytest.mark.crash
ROOT = Path(__file__).parents[2]


class Program:
    """tests/crash/fallback_program.py in a process of its own."""

    def __init__(self, store: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.fallback_program", store, *words],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.began = self.hear()

    def step(self, word: str) -> str:
        """One step; what is said of its save."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        return self.hear()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        """The last word; what the session has counted."""
        said = [self.step("end"), self.hear(), self.hear()]
        assert self.process.wait() == 0
        return said[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


Start = Callable[..., Program]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    with ExitStack() as programs:

        def begin(store: str, *words: str) -> Program:
            program = Program(store, *words)
            programs.callback(program.close)
            return program

        yield begin


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


def address(server: Server, folder: Path) -> str:
    return f"fallback.{quote(str(folder), safe='')}+{server.url}"


def kept(url: str) -> list[int]:
    return [found.steps for found in CheckpointManager.list_checkpoints("s", store=url)]


def waiting(url: str) -> list[int]:
    store = open_store(url)
    assert isinstance(store, Fallback)
    return [entry.sequence for entry in store.waits.waiting()]


def killed_while_away(start: Start, server: Server, url: str) -> None:
    program = start(url)
    assert [program.step(word) for word in "ab"] == ["saved 1 synced", "saved 2 synced"]
    server.kill()
    assert [program.step(word) for word in "cde"] == [f"saved {step} accepted" for step in (3, 4, 5)]
    program.kill()
    server.start()
    assert waiting(url) == [5, 4, 3]


def test_killed_while_its_store_is_away_a_session_goes_on_from_its_last_save(
    start: Start, server: Server, tmp_path: Path
) -> None:
    url = address(server, tmp_path / "folder")
    killed_while_away(start, server, url)

    program = start(url)

    assert program.began == "from 5"
    assert waiting(url) == []
    assert program.step("f") == "saved 6 synced"
    assert program.end() == "a,b,c,d,e,f,end"
    assert kept(server.url) == [7, 7, 6, 5, 4, 3, 2, 1]


def test_killed_while_it_hands_over_it_is_handed_over_once_more_and_in_order(
    start: Start, server: Server, tmp_path: Path
) -> None:
    url = address(server, tmp_path / "folder")
    killed_while_away(start, server, url)

    victim = start(url, "die")
    assert victim.began == ""
    assert victim.process.wait() == -signal.SIGKILL
    assert kept(server.url) == [3, 2, 1]
    assert waiting(url) == [5, 4, 3]

    program = start(url)

    assert program.began == "from 5"
    assert waiting(url) == []
    assert kept(server.url) == [5, 4, 3, 2, 1]


def test_somebody_else_has_gone_on_meanwhile_and_nothing_is_mixed(
    start: Start, server: Server, tmp_path: Path
) -> None:
    url = address(server, tmp_path / "folder")
    killed_while_away(start, server, url)
    elsewhere = start(address(server, tmp_path / "another machine"))
    assert elsewhere.began == "from 2"
    assert [elsewhere.step(word) for word in "xy"] == ["saved 3 synced", "saved 4 synced"]
    elsewhere.kill()

    program = start(url)

    assert program.began == "from 4"
    assert program.end() == "a,b,x,y,end"
    assert waiting(url) == []
    store = open_store(url)
    assert isinstance(store, Fallback)
    assert len(os.listdir(store.waits.refused.folder)) == 9

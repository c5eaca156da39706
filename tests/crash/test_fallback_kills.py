"""A process is killed while its store is away, or while it hands over: the next one has every save.

Real processes, and a real server that goes away and comes back with what it had confirmed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from graflow_ckpt import CheckpointManager
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.command_line import Started, started, written
from tests.servers import Server

pytestmark = pytest.mark.crash

# Counts one step for each line that it is told, and says each number when it was saved. argv: the store, and
# whether to die when the first checkpoint was handed over.
PROGRAM = """
import os, signal, sys
from graflow_ckpt import EveryTask, task, workflow
from graflow_ckpt.stores.files.store import LocalStore

def tell(event):
    if event.kind == "checkpoint_saved":
        print(f"kept: {event.step} {'synced' if event.facts['synced'] else 'accepted'}", flush=True)

with workflow(
    "count", "s", durability="checkpoint", store=sys.argv[1], checkpoint=EveryTask(), observers=[tell]
) as flow:

    @task(inject_context=True)
    def step(context):
        word = sys.stdin.readline().strip()
        context.get_channel().append("words", word)
        if word != "end":
            context.next_iteration()

    if "die" in sys.argv:
        LocalStore.delete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    print(f"begun: {flow.execution_context.steps}", flush=True)
    flow.execute()
    print("counted:", *flow.get_channel().get("words"), flush=True)
"""


class Program:
    """That program at work."""

    def __init__(self, process: Started) -> None:
        self.process = process

    def step(self, word: str) -> str:
        """One step; what is said of its save."""
        self.process.tell(word)
        return self.process.hear("kept: ")

    def end(self) -> str:
        """The last word; what the session has counted."""
        self.step("end")
        counted = self.process.hear("counted: ")
        assert self.process.wait() == 0
        return counted


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Begins the program in a store, and hears from which step."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    file = written(PROGRAM, f"{tmp_path}/count.py")
    with ExitStack() as programs:

        def begin(store: str, since: int) -> Program:
            process = programs.enter_context(started(file, store))
            assert process.hear("begun: ") == f"begun: {since}"
            return Program(process)

        yield begin


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def url(start: Start, server: Server, tmp_path: Path) -> str:
    """Of a store that was away when the session that saved there was killed, and is back."""
    url = address(server, tmp_path / "folder")
    program = start(url, 0)
    assert [program.step(word) for word in "ab"] == ["kept: 1 synced", "kept: 2 synced"]
    server.kill()
    assert [program.step(word) for word in "cde"] == [f"kept: {step} accepted" for step in (3, 4, 5)]
    program.process.signal(signal.SIGKILL)
    program.process.wait()
    server.start()
    assert waiting(url) == [5, 4, 3]
    return url


def address(server: Server, folder: Path) -> str:
    return f"fallback.{quote(str(folder), safe='')}+{server.url}"


def kept(url: str) -> list[int]:
    return [found.steps for found in CheckpointManager.list_checkpoints("s", store=url)]


def store_at(url: str) -> Fallback:
    store = open_store(url)
    assert isinstance(store, Fallback)
    return store


def waiting(url: str) -> list[int]:
    return [entry.sequence for entry in store_at(url).waits.waiting()]


def test_killed_while_its_store_is_away_a_session_goes_on_from_its_last_save(
    start: Start, server: Server, url: str
) -> None:
    program = start(url, 5)

    assert waiting(url) == []
    assert program.step("f") == "kept: 6 synced"
    assert program.end() == "counted: a b c d e f end"
    assert kept(server.url) == [7, 7, 6, 5, 4, 3, 2, 1]


def test_killed_while_it_hands_over_it_is_handed_over_once_more_and_in_order(
    start: Start, server: Server, url: str, tmp_path: Path
) -> None:
    with started(tmp_path / "count.py", url, "die") as victim:
        assert victim.wait() == -signal.SIGKILL
    assert victim.said == []
    assert kept(server.url) == [3, 2, 1]
    assert waiting(url) == [5, 4, 3]

    start(url, 5)

    assert waiting(url) == []
    assert kept(server.url) == [5, 4, 3, 2, 1]


def test_somebody_else_has_gone_on_meanwhile_and_nothing_is_mixed(
    start: Start, server: Server, url: str, tmp_path: Path
) -> None:
    elsewhere = start(address(server, tmp_path / "another machine"), 2)
    assert [elsewhere.step(word) for word in "xy"] == ["kept: 3 synced", "kept: 4 synced"]
    elsewhere.process.signal(signal.SIGKILL)
    elsewhere.process.wait()

    assert start(url, 4).end() == "counted: a b x y end"
    assert waiting(url) == []
    assert len(os.listdir(store_at(url).waits.refused.folder)) == 9

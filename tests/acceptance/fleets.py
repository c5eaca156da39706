"""A fleet for one test: a server of its own, pools beside it, and what they have written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graflow_ckpt import workflow
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.handle import Handle
from tests.acceptance.fleet_tasks import GATE
from tests.chaos.records import Commit, Line, ledger_of, lines
from tests.chaos.tasks import RUNS
from tests.pools import KEY, Pool, client_at, directly, surroundings
from tests.servers import Server
from tests.stretch import comes


@dataclass
class Fleet:
    """What a test asks of it."""

    server: Server
    client: Client
    folder: Path
    pools: list[Pool] = field(default_factory=list)

    def pool(
        self, name: str = "", *, url: str = "", environment: dict[str, str] | None = None, **settings: Any
    ) -> Pool:
        """Not started yet."""
        url = url or self.server.url
        given = surroundings(key=KEY) | {RUNS: str(self.folder / "runs"), GATE: str(self.gate)}
        name = name or f"pool{len(self.pools)}"
        made = Pool(url, self.folder, given | (environment or {}), directly(url, **settings), name)
        self.pools.append(made)
        return made

    def ready(self, workers: int) -> None:
        """Until so many workers wait for work."""
        rq = self.client.carrier.connection
        assert comes(lambda: len(rq.smembers("rq:workers")) == workers), self.said

    def submit(self, *expressions: Any, session: str = "one", **settings: Any) -> Handle:
        """A session of these, with a ledger."""
        with workflow("test", session, **settings) as flow:
            flow.add(*expressions)
        starts = tuple(flow.graph.roots())
        return self.client.submit(flow.graph, flow.settings, starts, {}, Terms(session, ledger=True))

    def complete(self, *expressions: Any, **settings: Any) -> Handle:
        """The same, when it has been completed."""
        handle = self.submit(*expressions, **settings)
        assert handle.wait(30).status == "completed", self.said
        return handle

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def open_gate(self) -> None:
        self.gate.touch()

    def lines(self, what: str = "") -> list[Line]:
        return [line for line in lines(self.folder / "runs") if what in ("", line.what)]

    def wait_for(self, what: str, task: str, count: int = 1) -> Line:
        """Until the task has begun or ended so often; the last of those lines."""

        def found() -> list[Line]:
            return [line for line in self.lines(what) if line.task == task]

        assert comes(lambda: len(found()) >= count), self.said
        return found()[count - 1]

    def ledger(self, session: str = "one") -> list[Commit]:
        return ledger_of(self.client.link, session)

    def completed(self, session: str = "one") -> list[str]:
        return [commit.task for commit in self.ledger(session) if commit.how == "completed"]

    @property
    def said(self) -> str:
        return "\n".join(f"--- {pool.name}\n{pool.said[-4000:]}" for pool in self.pools)


@contextmanager
def fleet(folder: Path, appendonly: str = "yes") -> Iterator[Fleet]:
    with Server({"appendonly": appendonly}) as server, closing(client_at(server.url)) as client:
        yield Fleet(server, client, folder)


def intervals(found: list[Line]) -> list[tuple[float, float, int]]:
    """From when to when each body ran, and where."""
    began: dict[tuple[int, int], float] = {}
    spans = []
    for line in found:
        if line.what == "began":
            began[line.pid, line.key] = line.at
        else:
            spans.append((began.pop((line.pid, line.key)), line.at, line.pid))
    return spans


def most_at_once(found: list[Line]) -> int:
    changes = sorted((at, way) for start, end, _ in intervals(found) for at, way in ((start, 1), (end, -1)))
    now = most = 0
    for _, way in changes:
        now += way
        most = max(most, now)
    return most

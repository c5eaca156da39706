"""A fleet for tests of the command line: a server with a password, a key, and pools in real processes."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from graflow_ckpt import task, workflow
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.health import WorkerFacts, pools
from graflow_ckpt.fleet.status import Status
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.command_line import GRAFLOW, Ended, Terminal, ended, inside
from tests.pools import Pool, client_at, surroundings
from tests.servers import Server
from tests.stretch import until

SCRIPT = f"{sysconfig.get_path('scripts')}/graflow-ckpt"
"""What an installation starts; other than with `python -m`, the working folder is not on its path."""

SECRET = "hu/sh@sh"
"""The server's password: nothing that is printed may hold it."""

# Extract, then two that could run at once, then load. `enrich` fails while the file `mended` is not there.
ETL = """
import os, sys, time
from graflow_ckpt import task, workflow

with workflow("etl") as ctx:

    @task
    def extract(rows=3):
        print("extract runs")
        return list(range(rows))

    @task(max_retries=0)
    def clean(extract):
        return [2 * row for row in extract]

    @task(max_retries=0)
    def enrich(extract, mended=""):
        if mended and not os.path.exists(mended):
            raise ValueError(f"no file {mended}")
        return len(extract)

    @task
    def load(clean, enrich):
        return sum(clean) + enrich

    extract >> (clean | enrich) >> load
    print("result", ctx.execute())
"""

# Waits in its only task until there is a file of that name.
SLOW = """
import os, time
from graflow_ckpt import task, workflow

with workflow("slow") as ctx:

    @task
    def hold(until):
        while not os.path.exists(until):
            time.sleep(0.01)
        return until

    ctx.execute()
"""


@task
def never() -> None:
    raise AssertionError("nobody works here")


class Fleet:
    """What all commands of a test are given."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url
        self.key = new_key()

    @property
    def environment(self) -> dict[str, str]:
        return {"GRAFLOW_CKPT_REDIS_URL": self.url, "GRAFLOW_CKPT_KEY": self.key}

    @property
    def shown(self) -> str:
        """The address as it may be printed."""
        return f"redis://{self.server.host}:{self.server.port}/0"

    def __call__(self, *arguments: str | Path, status: int | None = 0, **environment: str) -> Ended:
        """A command of the fleet; what it says holds no secret."""
        command = [*GRAFLOW, *map(str, arguments)]
        done = ended(command, status, "", {**self.environment, **environment})
        self.check(done.out + done.err)
        return done

    def here(self, *arguments: str, status: int | None = 0, **environment: str) -> Ended:
        """The same in this process, where starting one is not what is tested; for what runs no program."""
        done = inside(*arguments, status=status, **{**self.environment, **environment})
        self.check(done.out + done.err)
        return done

    def check(self, said: str) -> None:
        for secret in (SECRET, "hu%2Fsh%40sh", self.key.partition(":")[2]):
            assert secret not in said

    def submit(self, file: str, session: str, *arguments: str) -> str:
        return self("submit", file, "--session", session, *arguments).out.strip()

    # --- without a process, where something else is tested ---------------------------------

    @cached_property
    def client(self) -> Client:
        return client_at(self.url, self.key)

    def put(self, session: str, name: str = "etl") -> None:
        """A session of one task that nobody is to run."""
        flow = workflow(name).add(never)
        self.client.submit(flow.graph, flow.settings, ("never",), {}, Terms(session))
        now = int(time.time() * 1000)
        until(lambda: int(time.time() * 1000) > now)  # sessions are listed by the millisecond

    def workers(self) -> list[WorkerFacts]:
        return [worker for pool in pools(self.client.link) for worker in pool.workers]

    def status(self, session: str) -> Status:
        return self.client.session(session).status()

    @contextmanager
    def pool(
        self, *arguments: str, workers: int = 1, folder: Path | None = None, **environment: str
    ) -> Iterator[Pool]:
        """`graflow-ckpt worker`, when all of its workers have given a sign of life."""
        variables = {**surroundings(), **self.environment, **environment}
        command = [SCRIPT, "worker", "-n", str(workers), *arguments]
        with Pool(self.url, folder or Path.cwd(), variables, command) as pool:
            pool.ready()
            yield pool
        self.check(pool.said)

    def terminal(self, *arguments: str) -> Terminal:
        return Terminal(*arguments, **self.environment)


@contextmanager
def started() -> Iterator[Fleet]:
    with Server({"requirepass": SECRET}) as server:
        fleet = Fleet(server)
        yield fleet
        fleet.client.close()

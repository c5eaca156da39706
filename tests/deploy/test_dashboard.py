"""The tools of RQ, called as docs/deployment.md has it, beside a worker that is busy with a job in JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rq import Queue

from tests.servers import Server, free_port
from tests.stretch import until

ROOT = Path(__file__).parents[2]
SCRIPTS = sysconfig.get_path("scripts")


def command(program: str) -> str:
    """The line of the docs that calls it."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^(?:\w+=\S+ )*{program}(?: --.*| +#.*)?$", page, re.MULTILINE)
    return str(line)


def environment(server: Server) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "GRAFLOW_CKPT_REDIS_URL": server.url,
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One with a password, a job that is done, a token that a worker is busy with, and one that waits."""
    with Server({"requirepass": "5ecret"}) as server:
        queue = Queue("graflow-default", connection=server.client(), serializer="json")
        queue.enqueue("operator.concat", ["a"], ["b"], job_id="done")
        queue.enqueue("time.sleep", 600, job_id="session-e1t1")
        queue.enqueue("time.sleep", 600, job_id="session-e1t2")
        argv = [f"{SCRIPTS}/rq", "worker", "--worker-class", "rq.SimpleWorker", "--serializer", "json"]
        worker = subprocess.Popen(
            [*argv, "graflow-default"],
            env=environment(server) | {"RQ_REDIS_URL": server.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started = queue.started_job_registry
        until(lambda: "session-e1t1" in started.get_job_ids() or worker.poll() is not None)
        assert worker.poll() is None
        yield server
        worker.kill()
        worker.wait()


@pytest.fixture(scope="module", params=["one server", "a server of its own for RQ"])
def dashboard(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    port = free_port()
    own = environment(server)
    if request.param != "one server":
        own |= {"GRAFLOW_CKPT_REDIS_URL": "redis://127.0.0.1:1/0", "GRAFLOW_CKPT_RQ_URL": server.url}
    process = subprocess.Popen(
        f"exec {command('rq-dashboard')} --port {port}",
        shell=True,
        cwd=ROOT,
        env=own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: answers(port) or process.poll() is not None)
    assert process.poll() is None
    yield f"http://127.0.0.1:{port}/0/data"
    process.kill()
    process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
            return bool(page.status == 200)
    except urllib.error.URLError:
        return False


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as page:
        return json.load(page)


def test_rq_info_shows_queues_and_workers(server: Server) -> None:
    done = subprocess.run(
        command("rq info"), shell=True, env=environment(server), capture_output=True, text=True, check=True
    )

    assert re.search(r"graflow-default +\|.* 1, 1 executing", done.stdout)
    assert re.search(r"busy graflow-default", done.stdout)


def test_the_dashboard_shows_a_busy_worker(dashboard: str) -> None:
    (worker,) = asked(f"{dashboard}/workers.json")["workers"]

    assert worker["state"] == "busy"
    assert worker["current_job"]["job_id"] == "session-e1t1"


def test_the_dashboard_shows_queues_and_what_waits_in_them(dashboard: str) -> None:
    (queue,) = asked(f"{dashboard}/queues.json")["queues"]
    (waiting,) = asked(f"{dashboard}/jobs/graflow-default/queued/8/asc/1.json")["jobs"]

    assert (queue["name"], queue["count"]) == ("graflow-default", 1)
    assert waiting["id"] == "session-e1t2"


def test_the_dashboard_shows_a_token(dashboard: str) -> None:
    token = asked(f"{dashboard}/job/session-e1t1.json")

    assert token["status"] == "started"
    assert token["description"] == "time.sleep(600)"


def test_the_dashboard_shows_a_result(dashboard: str) -> None:
    done = asked(f"{dashboard}/job/done.json")

    assert done["status"] == "finished"
    assert done["result"] == ["a", "b"]

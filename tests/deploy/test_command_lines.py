"""Each command line of the compose file, the Dockerfile and the units, run as it stands there.

Only places are the tests' own: the address and folder of the server, and where the package is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rq import Worker
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from tests.deploy import files
from tests.deploy.files import EXAMPLE, ONE, SEVERAL, environment, service
from tests.deploy.test_compose import GIVEN, Composed, document
from tests.stretch import until

SCRIPTS = Path(sysconfig.get_path("scripts"))
PATIENCE = 60.0
OURS = "127.0.0.1:{port}"


@dataclass(frozen=True)
class Line:
    """How something starts a pool: its words, those of its probe, and what it is given."""

    words: list[str]
    probe: list[str]
    given: Mapping[str, str]


def of_compose() -> Line:
    worker = document(GIVEN)["services"]["worker"]
    words = [*files.stages()[-1].last("ENTRYPOINT").exec_form, *worker["command"]]
    given = worker["environment"]
    given["GRAFLOW_CKPT_REDIS_URL"] = given["GRAFLOW_CKPT_REDIS_URL"].replace("redis:6379", OURS)
    return Line(words, worker["healthcheck"]["test"][1:], given)


def of_image() -> Line:
    image = files.stages()[-1]
    words = [*image.last("ENTRYPOINT").exec_form, *image.last("CMD").exec_form]
    address = f"redis://:{GIVEN['GRAFLOW_CKPT_REDIS_PASSWORD']}@{OURS}/0"
    given = {"GRAFLOW_CKPT_REDIS_URL": address, "GRAFLOW_CKPT_KEY": GIVEN["GRAFLOW_CKPT_KEY"]}
    return Line(words, image.last("HEALTHCHECK").exec_form, given)


def of_unit(unit: Path) -> Line:
    words = shlex.split(service(unit)["ExecStart"])
    words[0] = Path(words[0]).name
    given = environment(EXAMPLE.read_text(encoding="utf-8"))
    address = given["GRAFLOW_CKPT_REDIS_URL"].replace("PASSWORD", GIVEN["GRAFLOW_CKPT_REDIS_PASSWORD"])
    given["GRAFLOW_CKPT_REDIS_URL"] = address.replace("127.0.0.1:6379", OURS)
    given["GRAFLOW_CKPT_KEY"] = GIVEN["GRAFLOW_CKPT_KEY"]
    return Line(words, [*words, "--health"], given)


LINES = {
    "compose": of_compose(),
    "image": of_image(),
    "unit": of_unit(ONE),
    "several": of_unit(SEVERAL),
}
EACH = pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())


@pytest.fixture
def server() -> Iterator[Composed]:
    server = Composed(GIVEN)
    with server:
        yield server


def surroundings(line: Line, server: Composed, folder: Path) -> dict[str, str]:
    given = dict(line.given)
    given["GRAFLOW_CKPT_REDIS_URL"] = given["GRAFLOW_CKPT_REDIS_URL"].format(port=server.port)
    assert given["GRAFLOW_CKPT_REDIS_URL"] == server.url
    own = {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{folder.parent}/app"}
    return os.environ | own | given


def log_of(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8")


def probe(line: Line, server: Composed, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line.probe,
        cwd=folder,
        env=surroundings(line, server, folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def begun(line: Line, server: Composed, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(exist_ok=True)
    with open(folder / "log", "wb") as log:
        env = surroundings(line, server, folder)
        process = subprocess.Popen(line.words, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()  # its workers die with it
        process.wait()


@contextmanager
def pool(line: Line, server: Composed, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A pool that its probe finds well."""
    with begun(line, server, folder) as process:
        wait_until_well(process, line, server, folder)
        yield process


def wait_until_well(process: subprocess.Popen[bytes], line: Line, server: Composed, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while (asked := probe(line, server, folder)).returncode != 0:
        said = asked.stdout + asked.stderr + log_of(folder)
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said


def workers(server: Composed) -> list[BaseWorker]:
    return Worker.all(connection=server.client(), serializer=JSONSerializer)


@EACH
def test_the_workers_that_were_asked_for_serve_their_queues(
    line: Line, server: Composed, tmp_path: Path
) -> None:
    with pool(line, server, tmp_path):
        found = workers(server)

    assert {tuple(worker.queue_names()) for worker in found} == {("graflow-default",)}
    if number := line.given.get("GRAFLOW_CKPT_WORKERS"):
        assert len(found) == int(number)


@EACH
def test_without_a_worker_the_probe_fails(line: Line, server: Composed, tmp_path: Path) -> None:
    assert probe(line, server, tmp_path).returncode == 1


@EACH
def test_it_drains_and_the_probe_sees_it(line: Line, server: Composed, tmp_path: Path) -> None:
    with pool(line, server, tmp_path) as process:
        process.terminate()

        assert process.wait(PATIENCE) == 0

    assert workers(server) == []
    assert probe(line, server, tmp_path).returncode == 1


@EACH
def test_it_does_not_say_a_secret(line: Line, server: Composed, tmp_path: Path) -> None:
    with pool(line, server, tmp_path) as process:
        process.terminate()
        process.wait(PATIENCE)

    said = log_of(tmp_path)
    assert said != ""
    assert GIVEN["GRAFLOW_CKPT_REDIS_PASSWORD"] not in said
    assert GIVEN["GRAFLOW_CKPT_KEY"].partition(":")[2] not in said


@EACH
def test_one_that_is_started_before_its_server_waits_for_it(
    line: Line, server: Composed, tmp_path: Path
) -> None:
    server.kill()

    with begun(line, server, tmp_path) as process:
        until(lambda: "cannot be reached" in log_of(tmp_path), PATIENCE)
        server.start()

        wait_until_well(process, line, server, tmp_path)


@EACH
def test_a_wrong_setting_ends_with_the_status_that_is_not_started_again(
    line: Line, server: Composed, tmp_path: Path
) -> None:
    wrong = replace(line, given={**line.given, "GRAFLOW_CKPT_WORKERS": "many"})

    with begun(wrong, server, tmp_path) as process:
        assert process.wait(PATIENCE) == int(service(ONE)["RestartPreventExitStatus"])

    assert "GRAFLOW_CKPT_WORKERS" in log_of(tmp_path)


def test_compose_gets_a_log_in_json(server: Composed, tmp_path: Path) -> None:
    with pool(LINES["compose"], server, tmp_path) as process:
        process.terminate()
        process.wait(PATIENCE)

    for said in log_of(tmp_path).splitlines():
        assert isinstance(json.loads(said), dict)


JOBS = """
import os

from graflow_ckpt import task

@task
def double(n):
    return [2 * n, os.getcwd()]
"""


def test_two_containers_of_compose_run_what_a_program_of_this_machine_submits(
    server: Composed, tmp_path: Path
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "jobs.py").write_text(JOBS, encoding="utf-8")
    (app / "client.py").write_text(
        "import json\nfrom jobs import double\nprint(json.dumps(double.submit(21).result(timeout=50)))\n",
        encoding="utf-8",
    )
    compose = LINES["compose"]
    given = {"GRAFLOW_CKPT_REDIS_URL": server.url, "GRAFLOW_CKPT_KEY": GIVEN["GRAFLOW_CKPT_KEY"]}

    with pool(compose, server, tmp_path / "one"), pool(compose, server, tmp_path / "two"):
        argv = [sys.executable, "client.py"]
        done = subprocess.run(
            argv, cwd=app, env=os.environ | given, capture_output=True, text=True, check=False
        )

    assert done.returncode == 0, done.stderr
    value, where = json.loads(done.stdout)
    assert value == 42
    assert where in {str(tmp_path / "one"), str(tmp_path / "two")}

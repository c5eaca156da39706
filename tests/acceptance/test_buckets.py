"""A checkpoint goes to a bucket with `storage=` and a session continues from it, on each kind of service.

The servers are those of tests/object_servers.py: moto for S3, the same behind Google's conditions for gcs,
and Azurite for azure, where AZURITE names it (`make test-buckets`, which .ci/run does where there is npm).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext
from tests.acceptance.command_line import KILLED, ended, inside, program
from tests.object_servers import CREDENTIALS, AzureServer, GoogleServer, ObjectServer

SERVERS = {"s3": ObjectServer, "gcs": GoogleServer, "azure": AzureServer}
PROGRAM = """
import os, sys
import numpy
from graflow_ckpt import task, workflow

with workflow("far", "s") as flow:

    @task(inject_context=True)
    def first(context):
        context.get_channel().set("weights", numpy.arange(300_000.0))
        handle = context.checkpoint({"loss": 0.5}, storage=sys.argv[1])
        print(handle.path, flush=True)

    @task(inject_context=True)
    def second(context):
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        print("sum", context.get_channel().get("weights").sum())

    first >> second

if __name__ == "__main__":
    flow.execute()
"""


@pytest.fixture(params=SERVERS)
def bucket(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, key: str
) -> Iterator[tuple[str, str]]:
    """The word for `storage=`, and the address that it means."""
    word = str(request.param)
    if word == "azure" and "AZURITE" not in os.environ:
        pytest.skip("Azurite comes with `make test-buckets`")
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY", raising=False)  # the server of that kind sets it
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with SERVERS[word]() as server:
        address = server.url
        monkeypatch.setenv(f"GRAFLOW_CKPT_{word.upper()}_URL", address)
        yield word, address


def test_a_session_continues_from_a_checkpoint_in_a_bucket_after_its_process_was_killed(
    bucket: tuple[str, str],
) -> None:
    word, address = bucket
    program("far.py", PROGRAM)

    path = ended([sys.executable, "far.py", word], KILLED, "", {}).out.strip()
    within, _, options = address.partition("?")
    listed = CheckpointManager.list_checkpoints("s", store=address)
    context, metadata = CheckpointManager.resume_from_checkpoint(f"{path}?{options}")

    assert path.startswith(f"{within}/s_step_1_")
    assert [(one.path, one.user_metadata["loss"]) for one in listed] == [(path.removesuffix(".pkl"), 0.5)]
    assert (metadata.session_id, metadata.steps, context.completed_tasks) == ("s", 1, {"first"})
    assert isinstance(context, ExecutionContext)
    verified = inside("checkpoints", "verify", f"{path}?{options}", "--json").document
    assert [row["verdict"] for row in verified] == ["good"]
    resumed = ended([sys.executable, "-m", "graflow_ckpt", "resume", f"{path}?{options}"], 0, "", {})
    assert resumed.out == f"sum {float(sum(range(300_000)))}\n"

"""What the checkpoint/resume design names, the Redis side: Example 3, and the checklist's RedisTaskQueue and
RedisChannel. Queue and values stay where they are; a checkpoint says only whose they are.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from graflow_ckpt import (
    CheckpointManager,
    ExecutionContext,
    RedisChannel,
    RedisTaskQueue,
    TaskSpec,
    WorkflowEngine,
    task,
    workflow,
)
from graflow_ckpt.core.errors import CheckpointError, NoSession, ServerGone, SessionError
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.acceptance.command_line import ended, run, started, written
from tests.acceptance.places import LOG, SESSION, WORLD, files_of, machine_in_redis, step
from tests.servers import Server
from tests.stretch import until

pytestmark = pytest.mark.usefixtures("client", "world")


def dumped(client: redis.Redis) -> dict[bytes, bytes]:
    """All that a server has of the session."""
    found: Any = client.keys(f"{keys_of(SESSION)}*")
    return {key: client.dump(key) for key in found}


def restored(client: redis.Redis, kept: dict[bytes, bytes]) -> None:
    for key, value in kept.items():
        client.restore(key, 0, value)


# --- Example 3 --------------------------------------------------------------------------


def test_example_3_as_it_is_written(redis_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    host, port = redis_server.host, redis_server.port
    Path("full").touch()
    saved: list[str] = []

    def process_data() -> None: ...

    def more_processing() -> None:
        pass

    def the_rest() -> None:
        if Path("full").exists():
            raise RuntimeError("out of memory")

    # Worker 1: Start execution
    redis_client = redis.Redis(host=host, port=port, db=0)

    with workflow("distributed_workflow") as ctx:

        @task(inject_context=True)
        def distributed_task(context):
            # Process some data
            process_data()

            # Checkpoint (path auto-generated as local file)
            checkpoint_path, metadata = context.checkpoint(metadata={"worker": "worker-1"})  # noqa: RUF059
            print(f"Checkpoint saved: {checkpoint_path}")
            print(f"Session ID: {context.session_id}")  # Save this for other workers
            saved.append(checkpoint_path)

            # Continue processing
            more_processing()

        @task
        def last_task():
            the_rest()
            return "done"

        distributed_task >> last_task

        exec_context = ExecutionContext.create(
            ctx.graph,
            start_node="distributed_task",
            queue_backend="redis",
            channel_backend="redis",
            config={"redis_client": redis_client},
        )

        try:
            exec_context.execute()
        except Exception as e:  # noqa: BLE001  as the document has it
            print(f"Worker 1 crashed: {e}")
            # Checkpoint was saved, can resume on another worker

    Path("full").unlink()

    # Worker 2: Resume from checkpoint
    # Use the same Redis instance and checkpoint file
    context, metadata = CheckpointManager.resume_from_checkpoint(checkpoint_path=saved[0])
    print(f"Worker 2 resuming session {metadata.session_id} from step {metadata.steps}")

    engine = WorkflowEngine()
    result = engine.execute(context)  # Continues where Worker 1 left off

    said = capsys.readouterr().out
    assert "Worker 1 crashed: out of memory" in said
    assert f"Worker 2 resuming session {exec_context.session_id} from step 1" in said
    assert (result, len(saved), context.status) == ("done", 1, "completed")
    assert metadata.user_metadata["worker"] == "worker-1"
    redis_client.close()


def test_queue_and_channel_have_their_documented_names(client: redis.Redis) -> None:
    context = machine_in_redis(client)

    assert isinstance(context.task_queue, RedisTaskQueue)
    assert isinstance(context.get_channel(), RedisChannel)
    context.get_channel().set("state", "B")
    assert (context.get_channel().get("state"), context.get_channel().keys()) == ("B", ["state"])
    assert context.get_checkpoint_state()["backend"] == {"queue": "redis", "channel": "redis"}


# --- a checkpoint holds no values, and nothing is queued again ----------------------------


def test_neither_values_nor_task_data_are_in_the_trio(client: redis.Redis) -> None:
    context = machine_in_redis(client, max_steps=1)
    context.channel.set("secret", "marrow" * 3)
    context.channel.append("list", "lemons" * 3)
    context.task_queue.enqueue(TaskSpec("step", task_data={"k": "quince" * 3}))
    context.execute()

    path, metadata = context.checkpoint(metadata={"why": "look"})

    raw = Path(path).read_bytes()
    for word in ("marrow", "lemons", "quince", "secret"):
        assert word.encode() not in raw
    opened = pickle.loads(raw)
    assert (opened.session_id, opened.get_channel().keys()) == (SESSION, [])
    state = json.loads(files_of(path)["state.json"].read_text())
    assert state["backend"] == metadata.backend == {"queue": "redis", "channel": "redis"}
    assert state["steps"] == 1
    assert all(word not in str(state) for word in ("marrow", "quince"))


def test_pending_tasks_stay_in_the_queue_and_are_listed_for_reading(client: redis.Redis) -> None:
    context = machine_in_redis(client, max_steps=1)
    context.execute()
    before = client.zrange(f"{keys_of(SESSION)}q:default", 0, -1, withscores=True)

    path, _ = context.checkpoint()
    resumed = ExecutionContext.resume(path)

    state = json.loads(files_of(path)["state.json"].read_text())
    assert [(s["task_id"], s["cycle"], s["queue"]) for s in state["pending_tasks"]] == [
        ("step", 1, "default")
    ]
    assert client.zrange(f"{keys_of(SESSION)}q:default", 0, -1, withscores=True) == before
    assert [spec.task_id for spec in resumed.task_queue.get_pending_task_specs()] == ["step"]
    assert (resumed.task_queue.size(), resumed.get_next_task()) == (1, "step")


def test_a_resume_queues_nothing_again(client: redis.Redis) -> None:
    context = machine_in_redis(client, max_steps=1)
    context.execute()
    path, _ = context.checkpoint()

    for _ in range(3):
        resumed = ExecutionContext.resume(path)
    assert resumed.execute(max_steps=9) == "C"

    assert LOG == ["A", "B", "C"]
    assert client.hget(f"{keys_of(SESSION)}n", "step") == b"3"  # so often it was queued


# --- attaching: the session has gone on since ---------------------------------------------


def test_resuming_an_older_checkpoint_means_the_live_session(client: redis.Redis) -> None:
    context = machine_in_redis(client, max_steps=2)
    context.execute()
    first, second = (m.path for m in reversed(CheckpointManager.list_checkpoints(SESSION)))

    resumed, metadata = CheckpointManager.resume_from_checkpoint(first)

    assert (metadata.steps, resumed.steps) == (1, 2)
    assert resumed.get_channel().get("state") == "C"
    assert resumed.max_steps == 2
    assert CheckpointManager.get_latest(SESSION) == second
    assert resumed.execute(max_steps=5) == "C"
    assert LOG == ["A", "B", "C"]


def test_who_attaches_to_what_is_completed_gets_its_result_and_runs_nothing(client: redis.Redis) -> None:
    context = machine_in_redis(client)
    context.execute()
    LOG.clear()

    resumed = ExecutionContext.resume(CheckpointManager.get_latest(SESSION))

    assert (resumed.execute(), resumed.status, LOG) == ("C", "completed", [])


def test_a_failed_step_runs_again_and_those_before_it_do_not(client: redis.Redis) -> None:
    WORLD["down"] = True
    with pytest.raises(ConnectionError) as failure:
        machine_in_redis(client).execute()
    assert "graflow-ckpt resume 12345" in failure.value.__notes__[0]
    WORLD["down"] = False

    resumed = ExecutionContext.resume(CheckpointManager.get_latest(SESSION))

    assert resumed.status == "failed"
    assert resumed.execute() == "C"
    assert LOG == ["A", "B", "C", "C"]


PROGRAM = """
import os, signal, sys
import redis
from graflow_ckpt import ExecutionContext, task, workflow

with workflow("dist") as ctx:
    @task
    def prep():
        return 5

    @task(inject_context=True)
    def work(context, prep):
        n = context.channel.get("n", 0) + 1
        context.channel.set("n", n)
        path, _ = context.checkpoint(metadata={"worker": "worker-1"})
        print("saved", path, flush=True)
        if n < 3:
            context.next_iteration()
        if n == 2 and "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    @task
    def end(work):
        return work * 5

    prep >> work >> end

if __name__ == "__main__":
    client = redis.Redis(port=int(sys.argv[1]))
    context = ExecutionContext.create(
        ctx.graph, "prep", queue_backend="redis", channel_backend="redis",
        config={"redis_client": client}, session_id="12345",
    )
    print("result:", context.execute())
"""

RESUMES = """
import socket, sys
from graflow_ckpt import CheckpointManager, WorkflowEngine
context, metadata = CheckpointManager.resume_from_checkpoint(sys.argv[1])
print("on", socket.gethostname(), "at", context.steps, context.task_queue.get_pending_tasks())
print("result:", WorkflowEngine().execute(context))
"""


@pytest.fixture
def program() -> Path:
    return written(PROGRAM, "flow.py")


def killed_after_its_checkpoint(program: Path, server: Server) -> tuple[str, Path]:
    """Its checkpoint, and a program that resumes from one."""
    said = run(program, str(server.port), "die", status=-9)
    resumes = program.with_name("resumes.py")
    resumes.write_text(RESUMES)
    return said.split()[1], resumes


def test_another_process_goes_on_when_the_first_is_killed(program: Path, redis_server: Server) -> None:
    path, resumes = killed_after_its_checkpoint(program, redis_server)

    said = run(resumes, path)

    assert "at 2 ['work']" in said  # what the dead process held is pending
    assert "result: 15" in said


def test_another_host_goes_on_with_the_queue_left_in_place(
    program: Path, redis_server: Server, client: redis.Redis
) -> None:
    """Of the dead process nothing can be seen from there: its lease has to run out."""
    path, resumes = killed_after_its_checkpoint(program, redis_server)
    from_another_host(client)
    client.zadd(f"{keys_of(SESSION)}tok", dict.fromkeys(tokens(client), 1))  # the lease is over

    said = run_there(resumes, path)

    assert "on elsewhere at 2 ['work']" in said
    assert "result: 15" in said


def test_what_a_process_on_another_host_holds_is_waited_for_while_its_lease_lasts(
    program: Path, redis_server: Server, client: redis.Redis
) -> None:
    run(program, str(redis_server.port), "die", status=-9)
    from_another_host(client)

    with started(program, str(redis_server.port)) as process:
        until(lambda: len(tokens(client)) == 2)
        assert client.zcard(f"{keys_of(SESSION)}done") == 2  # prep, and work once: it is claimed over there
        dead = min(tokens(client))
        client.zadd(f"{keys_of(SESSION)}tok", {dead: 1})
        process.hear("result: 15")
        assert process.wait() == 0


def tokens(client: redis.Redis) -> list[bytes]:
    found: Any = client.hkeys(f"{keys_of(SESSION)}own")
    return sorted(found)


def from_another_host(client: redis.Redis) -> None:
    """What the session knows of its worker, as if that had run on another machine."""
    for token in tokens(client):
        owner, _, queue = client.hget(f"{keys_of(SESSION)}own", token).partition(b"\x1e")  # type: ignore[union-attr]
        facts = json.loads(owner) | {"host": "other", "boot": "another-boot"}
        client.hset(f"{keys_of(SESSION)}own", token, json.dumps(facts).encode() + b"\x1e" + queue)


def run_there(program: Path, *arguments: str) -> str:
    """Run under another host name; without the right to have one, under a name that Python alone sees."""
    command, environment = [sys.executable, str(program), *arguments], {}
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0:
        command = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh", *command]
    else:
        site = program.parent / "named"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "import os, platform, socket\nsocket.gethostname = platform.node = lambda: 'elsewhere'\n"
        )
        environment["PYTHONPATH"] = str(site)
    return ended(command, 0, "", environment).out


# --- what cannot be gone on with is said --------------------------------------------------


def test_a_cut_that_is_newer_than_the_live_session_is_refused_with_both_numbers(client: redis.Redis) -> None:
    context = machine_in_redis(client, max_steps=1)
    context.execute()
    kept = dumped(client)
    context.execute(max_steps=2)
    path, metadata = context.checkpoint()
    client.flushall()
    restored(client, kept)  # as a server that comes back with what its disk had

    with pytest.raises(CheckpointError, match="Redis has lost commits") as lost:
        ExecutionContext.resume(path)

    assert (lost.value.session, lost.value.cut) == (SESSION, metadata.transition)
    assert lost.value.live < lost.value.cut
    assert f"transition {lost.value.live}" in lost.value.message
    assert f"at {lost.value.cut}" in lost.value.message


def test_a_cut_that_the_session_does_not_know_of_is_refused_although_it_has_gone_on(
    client: redis.Redis,
) -> None:
    context = machine_in_redis(client, max_steps=1)
    context.execute()
    kept = dumped(client)
    path, _ = context.checkpoint()
    client.flushall()
    restored(client, kept)
    for number in range(5):  # another history
        context.channel.set("n", number)

    with pytest.raises(CheckpointError, match="Redis has lost commits"):
        ExecutionContext.resume(path)


def test_without_a_live_session_the_newest_portable_cut_is_named(client: redis.Redis) -> None:
    context = machine_in_redis(client, max_steps=1)
    context.execute()
    portable, _ = context.checkpoint(portable=True)
    context.execute(max_steps=2)
    path, _ = context.checkpoint()
    client.flushall()

    with pytest.raises(NoSession, match=f"There is no session {SESSION} at redis://") as gone:
        ExecutionContext.resume(path)

    assert portable in gone.value.hint
    assert "rewind(path)" in gone.value.hint


def test_without_any_portable_cut_the_way_to_make_one_is_named(client: redis.Redis) -> None:
    machine_in_redis(client).execute()
    client.flushall()

    with pytest.raises(NoSession) as gone:
        ExecutionContext.resume(CheckpointManager.get_latest(SESSION))

    assert "checkpoint(portable=True)" in gone.value.hint


def test_a_server_that_is_away_is_no_lost_session(own_redis: Any) -> None:
    server = own_redis()
    context = machine_in_redis(server.client())
    context.execute()
    path = CheckpointManager.get_latest(SESSION)
    server.kill()

    with pytest.raises(ServerGone):
        ExecutionContext.resume(path)


def test_the_address_of_the_environment_is_tried_where_the_own_one_knows_nothing(
    client: redis.Redis, own_redis: Any, monkeypatch: pytest.MonkeyPatch, redis_server: Server
) -> None:
    """Another name of the same server; the checkpoint has the one that its maker used."""
    other = own_redis()
    context = machine_in_redis(client, max_steps=1)
    context.execute()
    path, _ = context.checkpoint()
    kept = dumped(client)
    client.flushall()
    restored(other.client(), kept)
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", other.url)

    assert ExecutionContext.resume(path).execute(max_steps=5) == "C"


def test_a_session_that_lives_in_redis_is_not_started_in_memory(client: redis.Redis) -> None:
    machine_in_redis(client).execute()

    with pytest.raises(SessionError, match=r"is in Redis, at redis://.*newest checkpoint") as refusal:
        workflow("machine", SESSION).add(step).execute()

    assert "ExecutionContext.resume" in refusal.value.hint

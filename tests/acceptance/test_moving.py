"""Sessions that are copied while they run, again and again, and from each kind of stores to each.

No copy is damaged, each can be gone on from, and the last one is what the session has come to.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from graflow_ckpt import CheckpointManager, EveryN, EveryTask, ExecutionContext, KeepLast, task
from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.care.copying import Move, Moved
from graflow_ckpt.checkpoint.values.contents import shares
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, new_key
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from tests.acceptance.command_line import CHAIN, COUNT, KILLED, graflow, inside, program, python
from tests.loops import LONG, chain, loop
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.servers import Server
from tests.stretch import until

STEPS, COPIES = 24, 6
LARGE = bytes(range(256)) * 400  # where values are shared it is stored once


@pytest.fixture(params=["local", "sqlite", "redis", "postgres", "objects"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of the origin."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", "k1:" + "31" * 32)
    if request.param == "redis":
        with Server({"appendonly": "yes", "appendfsync": "always"}) as server:
            yield server.url
    elif request.param in ("local", "sqlite"):
        yield f"{tmp_path}/s" if request.param == "local" else f"sqlite:///{tmp_path}/s.db"
    else:
        yield request.getfixturevalue(f"{request.param}_url")


def standing(store: CheckpointStore, ring: Keyring) -> tuple[Any, int]:
    """What a resume finds: the newest cut, and how many records after it."""
    path, found = next(iter(history.newest(store, ring, "s")))
    assert isinstance(found, archive.Found), path
    after = found.facts["transition"]
    return found.meta["checkpoint_id"], len(list(history.records(store, ring, after, found, "s")))


def test_a_session_is_copied_again_and_again_while_it_goes_on(url: str, tmp_path: Path) -> None:
    origin = open_store(url)
    target = open_store(f"sqlite:///{tmp_path}/target.db" if shares(origin) else f"file://{tmp_path}/target")
    there, go_on = threading.Semaphore(0), threading.Semaphore(0)  # where it waits for a copy, and may go on
    failed: list[BaseException] = []

    def count_up() -> None:
        try:
            run(url, there, go_on)
        except BaseException as error:  # noqa: BLE001  for the assertion below
            failed.append(error)

    session = threading.Thread(target=count_up, daemon=True)
    session.start()
    move = Move(origin, target, Keyring.reading(shared=origin.shared), Keyring.for_store(target))
    running = 0
    for _ in range(COPIES):
        assert there.acquire(timeout=LONG), failed
        go_on.release()
        moved = move.session("s")
        running += moved.running
        assert {cut.state for cut in moved.cuts} <= {"copied", "there", "gone"}
        for path, _ in target.list():
            archive.check(target, Keyring.for_store(target), path)
        if moved.error is None and any(cut.state != "gone" for cut in moved.cuts):
            standing(target, Keyring.for_store(target))
    session.join()

    assert failed == []
    assert running >= COPIES - 1  # all but the last, beside which it may end
    assert move.session("s").error is None
    assert standing(target, Keyring.for_store(target)) == standing(origin, Keyring.for_store(origin))


def run(url: str, there: threading.Semaphore, go_on: threading.Semaphore) -> None:
    def count(context: Any) -> None:
        if context.cycle % (STEPS // COPIES) == 0:
            there.release()
            go_on.acquire()  # so that a copy falls into these steps
        context.get_channel().set("large", LARGE)
        context.get_channel().set("sum", context.cycle)

    keep = KeepLast(2)  # so that cuts go while they are copied
    loop(STEPS, count, store=url, durability="journal", checkpoint=EveryN(3), keep=keep).execute()


# --- from each kind of stores to each ---------------------------------------------------


if TYPE_CHECKING:
    from tests.postgres_servers import PostgresServer

KINDS = ("memory", "local", "redis", "sqlite", "postgres", "objects")
AOF = {"appendonly": "yes", "appendfsync": "always"}  # else that store keeps no journal
LIMIT, AT = 6, 4  # steps, and the one in which everything is copied


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, object_server: ObjectServer
) -> Iterator[dict[str, tuple[str, str]]]:
    """Of each kind two places."""
    from graflow_ckpt.stores.drivers.postgres.store import PostgresStore

    folder = tmp_path_factory.mktemp("places")
    with ExitStack() as stack:
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in CREDENTIALS.items():
            variables.setenv(name, value)
        variables.setenv("GRAFLOW_CKPT_KEY", new_key())
        redis = stack.enter_context(Server(AOF))
        databases = postgres_server.database(), postgres_server.database()
        for url in databases:
            store = PostgresStore(url)
            store.schema.upgrade()
            store.close()
        yield {
            "memory": ("memory://one", "memory://two"),
            "local": (f"{folder}/one", f"{folder}/two"),
            "redis": (f"redis://{redis.host}:{redis.port}/0", f"redis://{redis.host}:{redis.port}/1"),
            "sqlite": (f"sqlite:///{folder}/one.db", f"sqlite:///{folder}/two.db"),
            "postgres": databases,
            "objects": (object_server.url, object_server.url),
        }


def counting_on(store: str, session: str, at: Any = None, **options: Any) -> tuple[Any, list[int]]:
    """The result of a session, and the steps that were run for it; `at` is called in the middle of one."""
    ran: list[int] = []

    def count(context: Any, data: int = 0) -> int:
        ran.append(data)
        channel = context.get_channel()
        assert channel.get("large", LARGE) == LARGE
        channel.set("large", LARGE)
        channel.set("sum", channel.get("sum", 0) + data)
        channel.set("live", {"text": "x" * 2000, "function": sorted})
        if data == AT and at is not None:
            at()
        if data + 1 < LIMIT:
            context.next_iteration(data + 1)
        return int(channel.get("sum"))

    options |= {"durability": "journal", "checkpoint": EveryN(3)}
    return chain(count, session_id=session, store=store, **options).execute(), ran


def move(origin: CheckpointStore, target: CheckpointStore) -> Move:
    return Move(origin, target, Keyring.reading(shared=origin.shared), Keyring.for_store(target))


def parts(store: CheckpointStore, session: str) -> dict[str, Any]:
    """Digests of all parts, by the id of the checkpoint."""
    metas = [json.loads(raw) for _, raw in store.list(session)]
    return {meta["checkpoint_id"]: meta["parts"] for meta in metas}


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_session_is_copied_everywhere_with_its_digests_and_goes_on_from_each(
    kind: str, places: dict[str, tuple[str, str]]
) -> None:
    origin, session = open_store(places[kind][0]), f"from-{kind}"
    targets = {name: open_store(places[name][1]) for name in KINDS}
    moved: dict[str, Moved] = {}
    seen: dict[str, dict[str, Any]] = {}

    def copy_everywhere() -> None:
        for name, target in targets.items():
            moved[name] = move(origin, target).session(session)
            seen[name] = parts(origin, session)

    result, ran = counting_on(places[kind][0], session, copy_everywhere)

    assert (result, ran) == (15, [0, 1, 2, 3, 4, 5])
    for name, target in targets.items():
        assert {cut.state for cut in moved[name].cuts} == {"copied"}, name
        assert moved[name].running
        assert moved[name].records > 0, name
        if shares(origin) == shares(target):
            assert parts(target, session) == seen[name] != {}
        for path, _ in target.list(session):
            archive.check(target, Keyring.for_store(target), path)
        went_on = counting_on(places[name][1], session, resume="must")
        assert went_on == (15, [4, 5]), name


# --- sessions of one process whose checkpoints are in Redis or in a bucket --------------


# A training loop whose model is a live object; kills itself before the step that it is told.
TRAIN = """
import os, signal, sys
from graflow_ckpt import task, workflow

class Model:
    def __init__(self):
        self.weights = [0.0] * 1000

    def step(self, epoch):
        self.weights[epoch % 1000] += epoch + 0.5

with workflow("train", session_id="s", store=sys.argv[1]) as ctx:

    @task(inject_context=True)
    def train(context, epoch=0):
        channel = context.get_channel()
        model = channel.get("model") or Model()
        if int(sys.argv[2]) == epoch:
            os.kill(os.getpid(), signal.SIGKILL)
        model.step(epoch)
        channel.set("model", model)
        context.checkpoint(metadata={"epoch": epoch})
        with open("epochs.log", "a") as log:
            log.write(f"{epoch}\\n")
        if epoch < 9:
            context.next_iteration(epoch + 1)
        return sum(model.weights)

    if __name__ == "__main__":
        print("result", ctx.execute())
"""


@pytest.fixture
def bucket(object_server: ObjectServer, objects_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store whose server the environment names, as it is in production."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{object_server.host}:{object_server.port}")
    return objects_url.partition("?")[0]


@pytest.fixture
def named(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", redis_url)
    return redis_url


def counting(url: str, limit: int, **options: Any) -> Any:
    def count(context: Any) -> None:
        context.get_channel().set("n", context.cycle + 1)

    return loop(limit, count, store=url, durability="auto", **options).execute() + 1


def completed(store: str | None = None) -> ExecutionContext:
    """A session of one task."""
    flow = chain(task(id="one")(lambda: 1), session_id="s", store=store)
    flow.execute()
    return flow.execution_context


@contextmanager
def beside(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed when the block ends."""
    with subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


class OnAServer:
    """What holds in Redis and in a bucket."""

    synced: bool

    def test_a_killed_training_goes_on_from_its_trio(self, url: str, key: str) -> None:
        script = program("train.py", TRAIN)

        assert python(script, url, "4", status=KILLED).out == ""
        assert python(script, url, "7", status=KILLED).out == ""
        done = python(script, url, "-1")

        assert done.out == f"result {sum(epoch + 0.5 for epoch in range(10))}\n"
        assert [int(line) for line in Path("epochs.log").read_text().split()] == list(range(10))
        assert not Path("checkpoints").exists()
        assert python(script, url, "-1").out == done.out  # and is finished

    @pytest.mark.crash
    @pytest.mark.timeout(300)
    def test_a_training_that_is_killed_at_any_time_ends_as_if_it_had_not_been(
        self, url: str, key: str
    ) -> None:
        script, log = program("train.py", TRAIN), Path("epochs.log")
        log.touch()
        for delay in (0.15, 0.2, 0.25, 0.3, 0.35, 0.4):  # imports, the claim, a first save
            with beside(script, url, "-1"):
                time.sleep(delay)
        for delay in (0.0, 0.002, 0.004, 0.008, 0.012):  # in saves, and between them
            before = log.read_text()
            with beside(script, url, "-1") as process:
                until(
                    lambda before=before, process=process: (
                        log.read_text() != before or process.poll() is not None
                    )
                )
                time.sleep(delay)

        done = python(script, url, "-1")

        assert done.out == f"result {sum(epoch + 0.5 for epoch in range(10))}\n"
        assert {int(line) for line in log.read_text().split()} == set(range(10))

    def test_a_checkpoint_is_resumed_by_its_path_from_anywhere(self, url: str, key: str) -> None:
        assert counting(url, 5, checkpoint=EveryTask()) == 5
        cuts = CheckpointManager.list_checkpoints("s", store=url)
        third = next(cut for cut in cuts if cut.steps == 3)
        assert third.path.startswith(f"{url.rstrip('/')}/session_s_step_3_")
        assert (third.home, third.synced) == (url, self.synced)

        context, metadata = CheckpointManager.resume_from_checkpoint(third.path)

        assert (metadata.steps, context.steps, context.get_channel().get("n")) == (3, 3, 3)
        assert context.execute() == 4
        assert context.steps == 5
        assert CheckpointManager.verify(CheckpointManager.get_latest("s", store=url)).epoch == 2

    def test_a_shared_store_needs_a_key_that_all_have(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GRAFLOW_CKPT_KEY", raising=False)
        with pytest.raises(CheckpointError, match="GRAFLOW_CKPT_KEY"):
            counting(url, 2)

        assert list(open_store(url).list()) == []


class TestRedis(OnAServer):
    synced = False

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url


class TestBucket(OnAServer):
    synced = True

    @pytest.fixture
    def url(self, bucket: str) -> str:
        return bucket


def test_a_journal_in_redis_loses_no_committed_task(own_redis: Callable[..., Server], key: str) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    store = ["--store", server.url, "--session", "s", "--durability", "journal"]
    script = program("count.py", COUNT)

    graflow("run", *store, script, "--", "4", status=None)
    server.restart()
    graflow("run", *store, script, "--", "none")

    assert Path("steps.log").read_text().split() == ["0", "1", "2", "3", "4", "4", "5"]


@pytest.mark.parametrize("place", ["bucket", "postgres_url"])
def test_a_journal_on_a_server_loses_no_committed_task(
    place: str, request: pytest.FixtureRequest, key: str
) -> None:
    store = ["--store", request.getfixturevalue(place), "--session", "s", "--durability", "journal"]
    script = program("count.py", COUNT)

    graflow("run", *store, script, "--", "4", status=KILLED)
    done = graflow("run", *store, script, "--", "none")

    assert "result 6" in done.out
    assert Path("steps.log").read_text().split() == ["0", "1", "2", "3", "4", "4", "5"]


def test_a_server_that_is_full_fails_the_save_and_not_the_workflow(
    own_redis: Callable[..., Server], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis({"maxmemory": "100mb"})

    def fill(context: Any) -> str:
        server.ask("CONFIG", "SET", "maxmemory", "1")
        context.checkpoint()
        return "done"

    assert chain(fill, session_id="s", store=server.url).execute() == "done"
    assert "checkpoint failed: Cannot write the checkpoint redis://" in caplog.text


# --- paths -----------------------------------------------------------------------------


def test_a_name_is_a_key_in_the_sessions_own_redis(redis_url: str, key: str) -> None:
    context = completed(redis_url)
    path, metadata = CheckpointManager.create_checkpoint(context, "redis://best", {"by": "hand"})

    assert path == metadata.path == f"{redis_url}/best"
    assert CheckpointManager.resume_from_checkpoint(path)[1].user_metadata == {"by": "hand"}
    found = CheckpointManager.list_checkpoints("s", store=redis_url)
    assert path in [cut.path for cut in found]


def test_a_name_is_else_a_key_in_the_redis_of_the_environment(named: str, key: str) -> None:
    context = completed()
    path, _ = CheckpointManager.create_checkpoint(context, "redis://best")

    assert path == f"{named}/best"
    assert [cut.path for cut in CheckpointManager.list_checkpoints("redis://*")] == [path]
    assert [cut.path for cut in CheckpointManager.list_checkpoints("redis://b*")] == [path]
    assert CheckpointManager.list_checkpoints("redis://x*") == []
    resumed, metadata = CheckpointManager.resume_from_checkpoint("redis://best")
    assert metadata.home == f"file://{Path('checkpoints').absolute()}"  # where the session lives
    assert resumed.execute() == 1
    assert CheckpointManager.verify("redis://best").session_id == "s"


def test_a_session_in_redis_may_have_a_checkpoint_in_a_file(redis_url: str, key: str) -> None:
    assert counting(redis_url, 2) == 2
    context, _ = CheckpointManager.resume_from_checkpoint(CheckpointManager.get_latest("s", store=redis_url))

    path, metadata = CheckpointManager.create_checkpoint(context, "kept/best.pkl")

    assert (path, metadata.home) == ("kept/best.pkl", redis_url)
    assert sorted(file.name for file in Path("kept").iterdir()) == [
        "best.meta.json",
        "best.pkl",
        "best.state.json",
    ]
    with open(path, "rb") as file:
        assert pickle.load(file).session_id == "s"


def test_a_session_on_disk_may_have_a_checkpoint_in_a_bucket(bucket: str, key: str) -> None:
    path, metadata = CheckpointManager.create_checkpoint(completed("here"), f"{bucket}/best.pkl")

    assert (path, metadata.home) == (f"{bucket}/best", f"file://{Path('here').absolute()}")
    assert [cut.path for cut in CheckpointManager.list_checkpoints(f"{bucket}/b*")] == [f"{bucket}/best"]
    resumed, _ = CheckpointManager.resume_from_checkpoint(f"{bucket}/best")
    assert resumed.execute() == 1


# --- keys and passwords ----------------------------------------------------------------


@pytest.fixture
def guarded(own_redis: Callable[..., Server], key: str) -> Server:
    return own_redis({"requirepass": "hunter2"})


def test_a_password_is_used_and_never_shown(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    counting(guarded.url, 3, checkpoint=EveryTask())

    cuts = CheckpointManager.list_checkpoints("s", store=guarded.url)
    stored = f"redis://127.0.0.1:{guarded.port}/0"
    assert {cut.home for cut in cuts} == {stored}
    context, _ = CheckpointManager.resume_from_checkpoint(cuts[-1].path)  # a path without the password
    assert context.execute() == 2
    assert "hunter2" not in f"{cuts} {caplog.text}"
    assert all("hunter2" not in raw.decode() for _, raw in RedisStore(guarded.url).list())


def test_the_command_line_does_everything_with_a_store_in_redis(guarded: Server) -> None:
    script = program("chain.py", CHAIN)
    stored, environment = f"redis://127.0.0.1:{guarded.port}/0", {"GRAFLOW_CKPT_REDIS_URL": guarded.url}
    Path("second.fails").touch()
    failed = graflow("run", script, "--session", "s", "--store", stored, status=1, **environment)
    assert "first runs" in failed.out
    Path("second.fails").unlink()

    done = graflow("resume", "s", "--store", stored, **environment)

    assert "first runs" not in done.out
    rows = inside("sessions", "--store", stored, "--json", **environment).document
    assert [(row["session"], row["status"]) for row in rows] == [("s", "completed")]
    cuts = inside("checkpoints", "list", "--store", stored, "--json", **environment).document
    path = cuts[0]["path"]
    assert path.startswith(f"{stored}/session_s_step_")
    verdicts = inside("checkpoints", "verify", path, "--json", **environment).document
    assert [verdict["verdict"] for verdict in verdicts] == ["good"]
    assert "good" in inside("checkpoints", "show", path, **environment).out
    other = {**environment, "GRAFLOW_CKPT_KEY": new_key()}
    inside("trust", path, "--yes", **other)
    assert "good" in inside("checkpoints", "show", path, **other).out
    assert graflow("plan", "s", "--store", stored, status=None, **environment).out


def test_the_doctor_looks_at_the_server(guarded: Server) -> None:
    found = inside("doctor", "--store", guarded.url, "--json", status=None)
    by_name = {finding["what"]: finding["verdict"] for finding in found.document}

    assert (by_name["store"], by_name["key"], by_name["saves"]) == ("ok", "ok", "warning")
    assert "appendonly no" in found.out
    assert "hunter2" not in found.out + found.err
    guarded.kill()
    gone = inside("doctor", "--store", guarded.url, "--json", status=1)
    assert {finding["what"]: finding["verdict"] for finding in gone.document}["store"] == "bad"


def test_a_second_process_is_told_who_owns_the_session(guarded: Server) -> None:
    lease = RedisStore(guarded.url).acquire("s")
    script = program("count.py", COUNT)

    busy = graflow("run", script, "--session", "s", "--store", guarded.url, status=None)

    assert busy.status != 0
    assert "Session 's' is in use by process" in busy.err
    assert "hunter2" not in busy.err
    lease.release()

"""What is seen of a fleet at one look, and from one look to the next, on a real server."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from graflow_ckpt.cli.fleet.outlook import Outlook, Overview, Queue, drawn, headline, printed
from graflow_ckpt.cli.fleet.wait import EXITS, closing, counts
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.health import PoolFacts, WorkerFacts
from graflow_ckpt.fleet.status import Status
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores.around.keys import Keyring
from tests.unit.fleet.played import Player, bag


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    client = Client(open_link(redis_url), keyring=Keyring({"test": b"k" * 32}))
    yield client
    client.close()


def step(player: Player) -> None:
    claim = player.claim()
    player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 0)])


def test_rates_are_the_steps_between_two_looks(client: Client) -> None:
    bag(client, "busy")
    bag(client, "still")
    player = Player(client, "busy")
    overview = Overview(client, 10)
    assert overview.look().rates == {}

    step(player)
    look = overview.look()

    assert look.rates["busy"] > 0
    assert look.rates["still"] == 0
    assert look.rate == look.rates["busy"]
    assert overview.look().rates["busy"] == 0
    player.close()


def test_those_that_do_most_come_first_and_only_so_many_are_shown(client: Client) -> None:
    for name in ("a", "b", "c"):
        bag(client, name)
    player = Player(client, "b")
    overview = Overview(client, 2)
    overview.look()

    step(player)
    look = overview.look()

    assert look.sessions[0].session == "b"
    assert (len(look.sessions), look.hidden) == (2, 1)
    player.close()


def test_queues_add_up_over_sessions_and_what_is_over_does_not_count(client: Client) -> None:
    bag(client, "one", 3)
    bag(client, "two", 2)
    bag(client, "three", 5)
    client.session("three").cancel()
    player = Player(client, "one")
    player.claim()

    look = Overview(client, 10).look()

    assert look.queues == [Queue("default", 4, 1, 2, 0)]
    assert look.document()["queues"][0]["ready"] == 4
    player.close()


OWNER = Owner(7, "1", "b", "n", "host", "argv", "now")


def pool(age: float = 0.5, *, draining: bool = False, session: str = "s") -> PoolFacts:
    worker = WorkerFacts("worker-1", OWNER, "busy" if session else "idle", session, "t", 1.25, 3)
    return PoolFacts("p", OWNER, OWNER, ("default",), 0.0, "1", "3.11", draining, 0, (worker,), {}, age)


def outlook(*pools: PoolFacts, **facts: object) -> Outlook:
    row = status(created=time.time() - 90, queues=(("default", 2), ("gpu", 0)), slices=(("gpu", 1),), tasks=9)
    given: dict[str, object] = {
        "sessions": [row], "hidden": 0, "rates": {"s": 12.5}, "queues": [Queue("default", 2, 0, 1, 0)],
        **facts,
    }  # fmt: skip
    return Outlook("redis://host:6379/0", 1.0, pools=list(pools), **given)  # type: ignore[arg-type]


def lines(capsys: pytest.CaptureFixture[str], look: Outlook) -> list[list[str]]:
    printed(Manner(), look)
    return [line.split() for line in capsys.readouterr().out.splitlines() if line]


def test_the_first_line_sums_up() -> None:
    assert headline(outlook(pool())) == (
        "redis://host:6379/0  1 session running, 1 worker, 1 busy, 12.5 tasks/s"
    )
    assert "1 session running (and 3 more)" in headline(outlook(pool(), hidden=3))


def test_a_session_has_what_is_ready_and_running_by_queue(capsys: pytest.CaptureFixture[str]) -> None:
    told = lines(capsys, outlook(pool()))

    assert told[1][0] == "SESSION"
    assert told[2] == [
        "s", "w", "running", "5/9", "2", "1", "12.5/s", "90", "s", "default", "2+0", "gpu", "0+1",
    ]  # fmt: skip


def test_a_queue_that_nobody_serves_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert ["default", "2", "0", "1", "none"] in lines(capsys, outlook())


def test_a_worker_has_what_it_runs_and_when_its_pool_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert ["p/worker-1", "host", "7", "busy", "s", "1.2", "s", "3", "0.5", "s"] in lines(
        capsys, outlook(pool())
    )


def test_a_pool_that_is_late_and_one_that_drains_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    told = lines(capsys, outlook(pool(8.0, session=""), pool(draining=True)))

    assert ["p/worker-1", "host", "7", "idle", "-", "3", "8.0", "s", "late"] in told
    assert any(row[:4] == ["p/worker-1", "host", "7", "draining"] for row in told)


def test_a_narrow_terminal_shortens_names_and_leaves_states_whole() -> None:
    console = Console(file=io.StringIO(), width=70)

    console.print(drawn(outlook(pool(), sessions=[status("completed", session="s" * 64, workflow="w" * 40)])))

    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "completed" in told
    assert "s" * 64 not in told


def test_on_a_terminal_a_fleet_without_workers_says_so_and_names_cannot_move_the_cursor() -> None:
    console = Console(file=io.StringIO(), width=100)

    console.print(drawn(outlook(sessions=[status(session="\x1b[2Jx")])))

    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no worker gives a sign of life" in told
    assert "\x1b" not in told


# --- what is said of an end -------------------------------------------------------------


def status(how: str = "running", **facts: object) -> Status:
    given: dict[str, object] = {
        "session": "s", "workflow": "w", "status": how, "reason": "", "steps": 7, "completed": 5, "ready": 2,
        "running": 1, "delayed": 3, "failed": 0, "skipped": 0, "created": 1.0, "ended": None, "tokens": 1,
        "checkpoint": None, "max_steps": None, "cap": None, "calls": None, "tasks": None, "queues": (),
        "slices": (), "fleet": True, **facts,
    }  # fmt: skip
    return Status(**given)  # type: ignore[arg-type]


def told(how: str, **facts: object) -> str:
    return closing(status(how, **facts), EXITS.get(how, 124), 2.5)


def test_each_end_says_what_can_be_done_next() -> None:
    assert told("completed") == "completed after 7 steps"
    assert told("failed", reason="E: no", failed=1) == (
        "failed after 7 steps: E: no; look: graflow-ckpt failed list --session s --traceback; "
        "go on: graflow-ckpt resume s"
    )
    assert told("paused", reason="by hand") == "paused after 7 steps: by hand; go on: graflow-ckpt resume s"
    assert told("stopped", reason="max_steps=7 reached") == (
        "max_steps=7 reached after 7 steps; go on with a larger one: graflow-ckpt resume s --max-steps 14"
    )
    assert told("cancelled", reason="enough") == "cancelled after 7 steps: enough"
    assert told("stalled", reason="still waiting: join") == "stalled after 7 steps: still waiting: join"


def test_what_completed_with_failures_says_how_many() -> None:
    assert told("completed", failed=2) == (
        "completed after 7 steps, 2 failed: graflow-ckpt failed list --session s"
    )


def test_who_has_waited_long_enough_is_told_how_far_it_is() -> None:
    assert told("running") == "has not ended after 2.5 s (5 done, 1 running, 5 waiting)"


@pytest.mark.parametrize(
    ("how", "code"),
    [("completed", 0), ("stopped", 0), ("failed", 1), ("cancelled", 1), ("stalled", 1), ("paused", 3)],
)
def test_an_end_has_a_status_for_who_called(how: str, code: int) -> None:
    assert EXITS[how] == code


@pytest.mark.parametrize("how", ["init", "running", "closing", "failing", "frozen"])
def test_what_goes_on_is_no_end(how: str) -> None:
    assert how not in EXITS


def test_failures_are_counted_only_if_there_are_some() -> None:
    assert counts(status()) == "5 done, 1 running, 5 waiting"
    assert counts(status(failed=1)) == "5 done, 1 running, 5 waiting, 1 failed"

"""Sessions in a Redis Cluster, RQ's queues on a server of their own."""

from __future__ import annotations

from pathlib import Path

from graflow_ckpt import task, workflow
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.links.redis import open_link
from tests.acceptance.fleet_tasks import named
from tests.chaos.bodies import RUNS
from tests.chaos.pools import KEY, PATIENCE, Pool
from tests.chaos.records import ledger_of
from tests.servers import Server

KEYRING = Keyring.load({"GRAFLOW_CKPT_KEY": KEY}, local=False)


@task
def negative(number: int) -> int:
    return -number


def test_a_fleet_runs_sessions_of_a_cluster_and_rq_knows_of_none(tmp_path: Path) -> None:
    with Server({}, cluster=True) as cluster, Server({}) as standalone:
        client = Client(open_link(cluster.url), open_link(standalone.url), KEYRING)
        first, left, right, last = map(named, ("first", "left", "right", "last"))
        with workflow("wide", "in-a-cluster") as flow:
            flow.add(first >> (left | right) >> last)
        pool = Pool("pool", cluster.url, tmp_path, rq_url=standalone.url, workers="2")
        pool._environment[RUNS] = str(tmp_path / "runs")
        pool.start()
        try:
            terms = Terms("in-a-cluster", ledger=True)
            handle = client.submit(flow.graph, flow.settings, (), {}, terms)
            many = client.submit_calls(negative, [((-n,), {}) for n in range(300)], Terms("bag"))

            assert handle.result(PATIENCE) == "last", pool.said
            assert many.results(PATIENCE) == list(range(300)), pool.said
            assert client.sessions()[:2] == ["bag", "in-a-cluster"]
        finally:
            pool.end()

        done = [commit.task for commit in ledger_of(client.link, "in-a-cluster") if commit.how == "completed"]
        assert (done[0], done[-1], sorted(done[1:3])) == ("first", "last", ["left", "right"])
        assert standalone.client().keys("graflow:{*") == []
        assert cluster.client().keys("rq:*") == []
        client.close()

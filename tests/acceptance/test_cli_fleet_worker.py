"""graflow-ckpt worker: a pool is started as flags, the environment and a file say, and probed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from graflow_ckpt.fleet.health import PoolFacts, pools
from tests.acceptance.command_line import LONG, program
from tests.acceptance.fleet_line import ETL, SECRET, Fleet


def only(fleet: Fleet) -> PoolFacts:
    (found,) = pools(fleet.client.link)
    return found


def test_a_pool_serves_what_the_file_says_unless_a_flag_says_otherwise(
    fleet: Fleet, own_folder: Path
) -> None:
    (own_folder / "key").write_text(fleet.key)
    (own_folder / "key").chmod(0o600)
    (own_folder / "graflow-ckpt.toml").write_text(
        f'[fleet]\nredis_url = "{fleet.url}"\nkey_file = "key"\nqueues = ["gpu", "default"]\n'
        "workers = 7\nlog = 'json'\n"
    )
    nothing = {"GRAFLOW_CKPT_REDIS_URL": "", "GRAFLOW_CKPT_KEY": ""}
    program("etl.py", ETL)

    with fleet.pool(**nothing) as pool:  # which says -n 1
        found = only(fleet)
        assert (found.queues, len(found.workers)) == (("gpu", "default"), 1)
        assert "completed after 4 steps" in fleet("submit", "etl.py", "--wait", **nothing).err
        assert fleet("worker", "--health", **nothing).out.startswith(f"pool {found.pool}: 1 workers")
        facts = [json.loads(line) for line in pool.log.splitlines() if line.startswith("{")]

    assert {fact["worker"] for fact in facts} == {"pool"}
    assert fleet.shown in facts[-1]["message"]


def test_a_pool_that_is_told_to_stop_drains_and_its_probe_sees_it(fleet: Fleet) -> None:
    with fleet.pool(workers=2) as pool:
        assert fleet("worker", "--health", "--json").document["healthy"]
        assert not fleet("worker", "--health", "--queues", "gpu", "--json", status=1).document["healthy"]

        pool.process.send_signal(signal.SIGTERM)

        assert pool.process.wait(LONG) == 0
        assert "draining: SIGTERM" in pool.log
    assert "No pool of workers runs here" in fleet("worker", "--health", status=1).out


def test_modules_are_found_in_the_working_folder_and_can_be_loaded_before(
    fleet: Fleet, own_folder: Path
) -> None:
    program("models.py", 'open("loaded", "a").write("once\\n")\nNAME = "big"\n')
    program(
        "flows.py",
        "import models\nfrom graflow_ckpt import task, workflow\n\n"
        "@task\ndef name():\n    return models.NAME\n\nwf = workflow('named').add(name)\n",
    )

    with fleet.pool("--preload", "models", workers=2):
        (own_folder / "loaded").write_text("")
        assert "completed after 1 step" in fleet("submit", "flows:wf", "--session", "s", "--wait").err

    assert fleet.client.session("s").result() == "big"
    assert (own_folder / "loaded").read_text() == "once\n"  # by submit; the worker had it


def test_a_machine_that_lacks_a_module_is_named_by_status_and_doctor(
    fleet: Fleet, own_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program("helper.py", "def help(): return 1\n")
    program(
        "uses.py",
        "import helper\nfrom graflow_ckpt import task, workflow\n\n"
        "@task\ndef used():\n    return helper.help()\n\nwf = workflow('uses').add(used)\n",
    )
    with fleet.pool("--code-patience", "0s", folder=tmp_path_factory.mktemp("elsewhere")):
        done = fleet("submit", "uses:wf", "--session", "s", "--wait", status=3)

        assert "paused after 0 steps" in done.err
        assert "module 'uses'" in done.err
        assert "'uses'" in fleet("status", "s").out
        found = fleet("doctor", "--url", fleet.url, "--json").document
        (code,) = [finding for finding in found if finding["what"] == "code"]
        assert code["verdict"] == "warning"
        assert "session s" in code["found"]


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--queues", "a/b"], "--queues cannot be used: 'a/b' is not a queue name"),
        (["-n", "0"], "--workers is '0'. Allowed: a whole number from 1 to 1024"),
        (["--grace", "soon"], "--grace is 'soon'"),
        (["--mode", "fork"], "No such option"),
        (["--url", "http://host"], "--url cannot be used: 'http://host' is not the address"),
        (["--url", f"redis://:{SECRET}@host"], "--url cannot be used: The address"),
        (["--config", "nothing.toml"], "nothing.toml cannot be read"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_flag_is_status_2_and_says_what_is_allowed(
    fleet: Fleet, arguments: list[str], told: str
) -> None:
    said = " ".join(fleet("worker", *arguments, status=2).err.split())

    assert told in said


def test_a_file_with_a_mistyped_key_stops_the_worker_by_name(fleet: Fleet, own_folder: Path) -> None:
    path = own_folder / "graflow-ckpt.toml"
    path.write_text('[fleet]\nqueue = "gpu"\n')

    said = fleet("worker", status=2).err

    assert f"{path} has 'queue' in [fleet], which is not a setting" in said
    assert "Is queues meant?" in said


def test_without_a_key_a_server_or_a_module_no_pool_is_started(fleet: Fleet) -> None:
    assert "GRAFLOW_CKPT_KEY" in fleet("worker", status=2, GRAFLOW_CKPT_KEY="").err
    assert "No server is named" in fleet("worker", status=2, GRAFLOW_CKPT_REDIS_URL="").err
    mistyped = fleet("worker", "--preload", "no_such_module", status=1, GRAFLOW_CKPT_WORKRS="3").err
    assert "GRAFLOW_CKPT_WORKRS is set, and nothing reads it" in mistyped
    said = fleet("worker", "--preload", "no_such_module", status=1).err
    assert "The module 'no_such_module' cannot be imported" in said
    wrong = fleet.url.replace("hu%2Fsh%40sh", "wrong")
    assert "refuses" in fleet("worker", status=1, GRAFLOW_CKPT_REDIS_URL=wrong).err

"""graflow-ckpt checkpoints diff and bisect: what has changed, and since when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.command_line import checkpoints, inside, program, python

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

TRAIN = """
import numpy as np
from graflow_ckpt import EveryTask, task, workflow

class Model:
    def __init__(self, weights): self.weights = weights
    def __setstate__(self, state):
        raise AssertionError("a pickle was opened")

with workflow("train", session_id="night", checkpoint=EveryTask()) as ctx:
    @task(inject_context=True)
    def train(context, data=1):
        channel = context.get_channel()
        channel.set("loss", 1 / data if data < 5 else float(data))
        channel.append("history", data)
        channel.set("model", Model(np.arange(4.0) * data))
        channel.set("api_key", f"hunter{data}")
        channel.set("still", [1, 2])
        if data < 7:
            context.next_iteration(data + 1)
        return {"status": "lost" if data > 5 else "ok"}
    ctx.execute(train)
"""


@pytest.fixture
def cuts(own_folder: Path) -> list[str]:
    python(program("train.py", TRAIN))
    return checkpoints("night")


def test_two_checkpoints_are_compared_without_opening_a_pickle(cuts: list[str]) -> None:
    text = inside("checkpoints", "diff", cuts[1], cuts[4])
    found = inside("checkpoints", "diff", cuts[1], "night", "--json").document

    rows = {line.split()[0]: line for line in text.out.splitlines()}
    assert "~ changed  list of 2 ▁█ 1 … 2" in rows["history"]
    assert "+900 %" in rows["loss"]
    assert "list of 4 ▁▃▆█ 0 … 6" in rows[".weights"]
    assert "hunter" not in text.out
    assert "5 values differ" not in text.err
    assert "values that differ: 4, that are the same: 1" in text.err
    assert [one["name"] for one in found["values"]] == ["api_key", "history", "loss", "model"]
    assert found["same"] == ["still"]
    assert found["b"]["path"] == cuts[-1]
    assert found["values"][3]["before"]["kind"] == "__main__.Model"
    assert found["results"][0]["inside"][0] == {
        "name": ".status", "what": "changed", "before": "'ok'", "after": "'lost'",
    }  # fmt: skip


def test_the_first_bad_checkpoint_is_found(cuts: list[str]) -> None:
    text = inside("checkpoints", "bisect", "night", "--bad", "loss > 2 and max(model.weights) > 1")
    found = inside(
        "checkpoints", "bisect", "night", "--bad", "results.train.status == 'lost'", "--json"
    ).document

    assert f"first bad  {cuts[4]}" in text.out
    assert f"last good  {cuts[3]}" in text.out
    assert "1 step between them" in text.err
    assert found["first_bad"]["path"] == cuts[5]
    assert found["last_good"]["steps"] == 5
    assert len(found["looked_at"]) < len(cuts)
    assert any(one["name"] == "history" for one in found["between"]["values"])


def test_none_is_bad_is_an_exit_status_and_nonsense_is_another(cuts: list[str]) -> None:
    assert (
        "none of session night is bad"
        in inside("checkpoints", "bisect", "night", "--bad", "loss > 100", status=1).err
    )
    told = inside("checkpoints", "bisect", "night", "--bad", "los > 1", "--json", status=1).document
    assert (told["error"], told["name"]) == ("BadCondition", "los")
    assert (
        "not allowed in an expression"
        in inside("checkpoints", "bisect", "night", "--bad", "exit()", status=2).err
    )

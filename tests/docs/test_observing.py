"""Dashboard, alert rules and runbook speak of metrics that there are, and of each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from graflow_ckpt.observers.prometheus import PrometheusObserver, StoreCollector
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.trios import put

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\b(?:checkpoint|checkpoints|graflow|orphaned)_[a-z_]+\b")


@pytest.fixture
def known(tmp_path: Path) -> Iterator[set[str]]:
    """The names of all metrics as they are exposed."""
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    store = Fallback(MemoryStore("memory://docs"), str(tmp_path))
    put(store, "best", "one")
    StoreCollector(store).register(registry)
    yield {
        name
        for family in registry.collect()
        for name in (
            family.name,
            *(
                f"{family.name}_{end}"
                for end in {"histogram": ("bucket", "count", "sum")}.get(family.type, ())
            ),
            *([f"{family.name}_total"] if family.type == "counter" else ()),
        )
    }
    MemoryStore("memory://docs").forget()


def alerts() -> list[dict[str, Any]]:
    document = YAML(typ="safe").load(DOCS / "observing" / "alerts.yml")
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_alert_rules_are_about_metrics_that_there_are(known: set[str]) -> None:
    for rule in alerts():
        used = set(NAME.findall(rule["expr"]))
        assert used, rule["alert"]
        assert used <= known, rule["alert"]


def test_the_dashboard_is_about_metrics_that_there_are(known: set[str]) -> None:
    board = json.loads((DOCS / "observing" / "dashboard.json").read_text(encoding="utf-8"))

    used = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in NAME.findall(target["expr"])
    }

    assert len(used) >= 12
    assert used <= known


def test_each_alert_has_its_section_in_the_runbook_and_no_section_is_about_none() -> None:
    text = (DOCS / "runbook.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_the_page_names_the_metrics_that_there_are(known: set[str]) -> None:
    named = set(
        re.findall(
            r"`((?:checkpoint|checkpoints|graflow|orphaned)_[a-z_]+)`",
            (DOCS / "observing.md").read_text(encoding="utf-8"),
        )
    )
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known}

    assert named <= families | {"graflow_ckpt"}
    assert {"checkpoint_save_duration_seconds", "checkpoint_errors_total", "checkpoints_per_flow"} <= named

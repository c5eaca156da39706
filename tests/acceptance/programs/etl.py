"""A diamond on threads: extract, two ways to change it, load; then report."""

from __future__ import annotations

from typing import Any

from graflow_ckpt import EveryTask, task, workflow
from tests.acceptance.programs.journalist import begins, ended, final_state

COMMITS_AT_ONCE = True
FOLLOWS = {
    "clean": {"extract"}, "enrich": {"extract"}, "count": {"extract"},
    "load": {"clean", "enrich", "count"}, "report": {"load"},
}  # fmt: skip


def main(durability: Any) -> dict[str, Any]:
    with workflow(
        "etl",
        session_id="etl",
        durability=durability,
        checkpoint=EveryTask(),
        max_parallel=3,
        observers=(ended,),
    ) as flow:

        @task(inject_context=True)
        def extract(context: Any) -> list[int]:
            begins(context)
            return [3, -1, 4, -1, 5]

        @task(inject_context=True)
        def clean(context: Any, extract: list[int]) -> list[int]:
            begins(context)
            context.channel.append("seen", 1)
            return [n for n in extract if n > 0]

        @task(inject_context=True)
        def enrich(context: Any, extract: list[int]) -> dict[int, str]:
            begins(context)
            context.channel.append("seen", 1)
            return {n: f"{n:+}" for n in extract}

        @task(inject_context=True)
        def count(context: Any, extract: list[int]) -> int:
            begins(context)
            context.channel.append("seen", 1)
            return len(extract)

        @task(inject_context=True)
        def load(context: Any, clean: list[int], enrich: dict[int, str], count: int) -> list[str]:
            begins(context)
            context.channel.set("loaded", [enrich[n] for n in clean] * count)
            return [enrich[n] for n in clean]

        @task(inject_context=True)
        def report(context: Any, load: list[str]) -> str:
            begins(context)
            return f"{len(load)} rows, {context.channel.get('seen')}"

        extract >> (clean | enrich | count) >> load >> report
        flow.execute("extract")
    return final_state(flow)

"""Submission: the graph of a program, as a session of a fleet.

The program is run until it would execute or submit a workflow, with what it prints led to stderr. What
it would have given that workflow (start, inputs, its session id) counts, where the command line does
not say otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import click

from graflow_ckpt.core.errors import GraphError, SessionExists
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.frontends.dsl import Workflow
from graflow_ckpt.frontends.overrides import Planned, overrides
from graflow_ckpt.interfaces.cli import program, words
from graflow_ckpt.interfaces.cli.connecting import document
from graflow_ckpt.interfaces.cli.manner import Manner


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says of the session."""

    session: str | None = None
    existing: str = "refuse"
    max_steps: int | None = None
    ttl: float | None = None
    inputs: dict[str, Any] = field(default_factory=dict)  # Any: JSON


def submit(
    manner: Manner, client: Client, target: str, arguments: Sequence[str], wanted: Wanted, *, quiet: bool
) -> Handle:
    """Accepted when it returns. The id is printed, and nothing but it; `quiet`: not even that."""
    reached = _reached(target, arguments)
    workflow: Workflow = reached.workflow
    terms = Terms(
        wanted.session or workflow.wanted_session,
        wanted.existing,
        wanted.max_steps if wanted.max_steps is not None else reached.max_steps,
        ledger=workflow.ledger,
    )
    if wanted.ttl is not None:
        terms = replace(terms, ttl=wanted.ttl)
    inputs = {**reached.inputs, **wanted.inputs}
    try:
        handle = client.submit(workflow.graph, workflow.settings, reached.starts, inputs, terms)
    except SessionExists as error:
        error.hint = "Give another id (--session), or be content with that one (--existing return)."
        raise
    status = handle.status()
    if quiet:
        manner.note(f"session {handle.session} ({status.workflow}) at {client.link.address}: {status.status}")
    elif manner.json:
        manner.document(document(status, client.link.address))
    else:
        follow = words.fleet_command("wait", handle.session)
        manner.note(f"{status.workflow} at {client.link.address}: {status.status}; follow it: {follow}")
        click.echo(handle.session)
    return handle


def _reached(target: str, arguments: Sequence[str]) -> Planned:
    """Where the program would have run a workflow; of one that only writes it down, the only one."""
    overrides.planning = True
    try:
        with redirect_stdout(sys.stderr), program.Sandbox() as sandbox:
            program.run(target, arguments)
    except Planned as reached:
        return reached
    finally:
        overrides.planning = False
    if sandbox.status not in (None, 0):
        raise GraphError(f"{target} ended with status {sandbox.status} before it executed a workflow.")
    met: list[Workflow] = list(overrides.met)
    if len(met) != 1:
        names = ", ".join(sorted({workflow.name for workflow in met})) or "none"
        raise GraphError(
            f"{target} executes no workflow, and has {'several' if met else 'none'} (it has: {names}).",
            hint="Call execute() of the one that is meant, or: graflow-ckpt submit MODULE:WORKFLOW.",
        )
    return Planned(met[0], tuple(met[0].graph.roots()))

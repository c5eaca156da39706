"""`graflow-ckpt db`: the tables of a store in a database, by version.

`upgrade` is run once by a user with the right to make tables, and after a new version of the package;
programs then need the right to read and write rows. Not here: the steps (stores/drivers/postgres/schema.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graflow_ckpt.cli import lazy, options
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import BadAddress

if TYPE_CHECKING:
    from graflow_ckpt.stores.drivers.postgres.schema import Migration, SchemaStatus
    from graflow_ckpt.stores.drivers.postgres.store import PostgresStore


@options.group("db")
def command() -> None:
    """Make, change and look at the tables of a store in a database (postgresql://…)."""


@command.command("status")
@options.store
def status_(manner: Manner, /, store: str) -> int:
    """Show which version the tables have. Exit status 0 if programs of this version can work with them.

    Examples:
      graflow-ckpt db status --json | jq -r .verdict
      graflow-ckpt db status > /dev/null || graflow-ckpt db upgrade
    """
    place = _opened(store)
    status = place.schema.status()
    steps = {step.version: step.name for step in status.known}
    steps |= {step.version: step.name for step in status.applied}
    times = {step.version: f"{step.at:%Y-%m-%d %H:%M:%S%z}" for step in status.applied}
    rows = [(number, steps[number], times.get(number, "")) for number in sorted(steps)]
    said = f"{place.url}: {_WORDS[status.verdict]}"
    manner.listing(_document(place, status), ("version", "name", "applied"), rows, said, right=("version",))
    return 0 if status.verdict == "ready" else 1


@command.command("upgrade")
@click.option("--to", type=options.COUNT, metavar="VERSION", help="Up to this version only.")
@options.store
def upgrade(manner: Manner, /, to: int | None, store: str) -> None:
    """Make the tables, or bring them up to this version. Others may work with them meanwhile.

    Each step is done whole or not at all; if it is interrupted, call it again. Several at once do no harm.

    Examples:
      export GRAFLOW_CKPT_STORE=postgresql://me:secret@host/checkpoints
      graflow-ckpt db upgrade
      PGPASSWORD=… graflow-ckpt db upgrade --store postgresql://host/checkpoints
    """
    place = _opened(store)
    _tell(manner, place, place.schema.upgrade(to))


@command.command("downgrade")
@click.option(
    "--to", type=click.IntRange(min=0), required=True, metavar="VERSION", help="Back to it; 0: none."
)
@options.unasked
@options.store
def downgrade(manner: Manner, /, to: int, yes: bool, store: str) -> None:
    """Take the tables back to an older version. To version 0 takes all checkpoints with it.

    Examples:
      graflow-ckpt db downgrade --to 1
      graflow-ckpt db downgrade --to 0 --yes   takes all checkpoints away
    """
    place = _opened(store)
    if not yes:
        checkpoints, sessions = place.schema.counts()
        loss = f"{checkpoints} checkpoints and {sessions} sessions go" if to == 0 else "Newer programs stop"
        manner.ask(f"{loss} in {place.url}. Go back to version {to}?")
    _tell(manner, place, place.schema.downgrade(to))


_WORDS = {
    "ready": "ready",
    "none": "no tables yet: graflow-ckpt db upgrade",
    "behind": "older than this program: graflow-ckpt db upgrade",
    "newer": "upgraded by a newer program than this one",
    "changed": "made by another text of a step than this program has",
}


def _opened(where: str) -> PostgresStore:
    where = lazy.prefixes.unwrapped(where)  # what is wrapped around a store has no tables
    if not lazy.postgres_names.is_postgres(where):
        raise BadAddress(
            f"{where} is no database with tables.",
            hint="Name one: --store postgresql://host/database, or GRAFLOW_CKPT_STORE.",
            store=where,
        )
    return lazy.postgres_store.PostgresStore(where)


def _tell(manner: Manner, place: PostgresStore, taken: list[Migration]) -> None:
    status = place.schema.status()
    manner.result(
        {**_document(place, status), "taken": [step.version for step in taken]},
        f"{place.url} has version {status.version}{'' if taken else '; nothing to do'}",
        lines=[f"{step.version} {step.name}" for step in taken],
    )


def _document(place: PostgresStore, status: SchemaStatus) -> dict[str, object]:
    applied = [{"version": s.version, "name": s.name, "at": s.at.isoformat()} for s in status.applied]
    known = {"version": status.version, "wanted": status.wanted, "verdict": status.verdict}
    return {"store": place.url, **known, "applied": applied, "changed": status.changed}

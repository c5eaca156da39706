"""`graflow-ckpt db`: the tables of a store in a database, by version.

`upgrade` is run once by a user with the right to make tables, and after a new version of the package;
programs then need the right to read and write rows. Not here: the steps (stores/drivers/postgres/schema.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graflow_ckpt.cli import lazy
from graflow_ckpt.cli.options import common, manner_of, store
from graflow_ckpt.core.errors import BadAddress

if TYPE_CHECKING:
    from graflow_ckpt.stores.drivers.postgres.schema import Migration, SchemaStatus
    from graflow_ckpt.stores.drivers.postgres.store import PostgresStore

UPGRADE = """\b
Examples:
  export GRAFLOW_CKPT_STORE=postgresql://me:secret@host/checkpoints
  graflow-ckpt db upgrade
  PGPASSWORD=… graflow-ckpt db upgrade --store postgresql://host/checkpoints
"""
DOWNGRADE = """\b
Examples:
  graflow-ckpt db downgrade --to 1
  graflow-ckpt db downgrade --to 0 --yes   takes all checkpoints away
"""
STATUS = """\b
Examples:
  graflow-ckpt db status --json | jq -r .verdict
  graflow-ckpt db status > /dev/null || graflow-ckpt db upgrade
"""


@click.group("db")
def command() -> None:
    """Make, change and look at the tables of a store in a database (postgresql://…)."""


@command.command("status", epilog=STATUS)
@store
@common
def status_(ctx: click.Context, /, store: str) -> int:
    """Show which version the tables have. Exit status 0 if programs of this version can work with them."""
    manner, place = manner_of(ctx), _opened(store)
    status = place.schema.status()
    if manner.json:
        manner.document(_document(place, status))
    else:
        steps = {step.version: step.name for step in status.known} | {
            s.version: s.name for s in status.applied
        }
        times = {step.version: f"{step.at:%Y-%m-%d %H:%M:%S%z}" for step in status.applied}
        rows = [(number, steps[number], times.get(number, "")) for number in sorted(steps)]
        manner.table(("version", "name", "applied"), rows, right=("version",))
        manner.note(f"{place.url}: {_WORDS[status.verdict]}")
    return 0 if status.verdict == "ready" else 1


@command.command("upgrade", epilog=UPGRADE)
@click.option("--to", type=click.IntRange(min=1), metavar="VERSION", help="Up to this version only.")
@store
@common
def upgrade(ctx: click.Context, /, to: int | None, store: str) -> int:
    """Make the tables, or bring them up to this version. Others may work with them meanwhile.

    Each step is done whole or not at all; if it is interrupted, call it again. Several at once do no harm.
    """
    place = _opened(store)
    return _done(ctx, place, place.schema.upgrade(to))


@command.command("downgrade", epilog=DOWNGRADE)
@click.option(
    "--to", type=click.IntRange(min=0), required=True, metavar="VERSION", help="Back to it; 0: none."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@store
@common
def downgrade(ctx: click.Context, /, to: int, yes: bool, store: str) -> int:
    """Take the tables back to an older version. To version 0 takes all checkpoints with it."""
    place = _opened(store)
    if not yes:
        checkpoints, sessions = place.schema.counts()
        loss = f"{checkpoints} checkpoints and {sessions} sessions go" if to == 0 else "Newer programs stop"
        manner_of(ctx).ask(f"{loss} in {place.url}. Go back to version {to}?")
    return _done(ctx, place, place.schema.downgrade(to))


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


def _done(ctx: click.Context, place: PostgresStore, taken: list[Migration]) -> int:
    manner, status = manner_of(ctx), place.schema.status()
    if manner.json:
        manner.document({**_document(place, status), "taken": [step.version for step in taken]})
        return 0
    for step in taken:
        manner.say(f"{step.version} {step.name}")
    manner.note(f"{place.url} has version {status.version}{'' if taken else '; nothing to do'}")
    return 0


def _document(place: PostgresStore, status: SchemaStatus) -> dict[str, object]:
    applied = [{"version": s.version, "name": s.name, "at": s.at.isoformat()} for s in status.applied]
    known = {"version": status.version, "wanted": status.wanted, "verdict": status.verdict}
    return {"store": place.url, **known, "applied": applied, "changed": status.changed}

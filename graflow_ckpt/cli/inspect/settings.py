"""`graflow-ckpt settings`: what counts here, and where each of it comes from."""

from __future__ import annotations

import os

from graflow_ckpt.cli import options
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.config.settings import Origin
from graflow_ckpt.core.redaction import HIDDEN
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.links.environment import ALONE, NAMES, unknown, variable

OTHERS = ("WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN", "USE_SQLITE_CHECKPOINTS")
"""Variables of other names that say where checkpoints are."""

_SECRET = ("fernet_key",)


@options.command("settings")
@options.fleet
def command(manner: Manner, /) -> None:
    """Show the settings as they count here, and whether a flag, the environment or a file says so.

    Neither a password nor a key is shown. The exit status is 2 if a setting cannot be.

    Examples:
      graflow-ckpt settings
      graflow-ckpt settings --config /etc/graflow-ckpt/fleet.toml --json
    """
    found = options.resolved(manner)
    rows: list[Document] = [
        {"setting": name, "value": found.shown(name), **_origin(found.origin(name))} for name in NAMES
    ]
    alone = {name: variable(name) for name in ALONE} | {name.lower(): name for name in OTHERS}
    for name, said in alone.items():
        if value := os.environ.get(said):
            shown = HIDDEN if name in _SECRET or "password" in value else masked(value)
            rows.append({"setting": name, "value": shown, **_origin(Origin("environment", said))})
    strange = unknown()
    document = {"settings": rows, "file": found.given.file, "unknown": strange}
    cells = [(row["setting"], row["value"] or "-", row["from"], row["where"]) for row in rows]
    notes = (f"{name} is set, and nothing reads it" for name in strange)
    manner.listing(document, ("setting", "value", "from", "where"), cells, *notes)


def _origin(origin: Origin) -> Document:
    return {"from": origin.kind, "where": origin.where}

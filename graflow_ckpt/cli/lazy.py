"""Modules that commands need only when they run: `lazy.client.client_of(…)` loads cli/client.py then.

A command's own module is loaded for its help and for each TAB of a shell, and both have a bar of 150 ms. So
what is slow to load (redis, blake3, rich, the engine) is named here, and in no function of a command.
Not here: the commands themselves (app.py).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

__all__ = [
    "accepting", "clearance", "client", "comparison", "continuation", "control", "copying", "disk", "display",
    "dry_run", "examination", "fallback", "fleet_status", "fleet_worker", "health", "inventory", "journey",
    "keyring", "keys", "launch", "live", "locate", "model", "objects_names", "outlook", "places",
    "pool", "postgres_names", "postgres_store", "prefixes", "program", "redis_links", "sqlite_care",
    "sqlite_names", "sqlite_store", "stores", "waiting",
]  # fmt: skip

_OWN = {
    "cli": ("client", "live", "locate"),
    "cli.run": ("continuation", "dry_run", "launch", "program"),
    "cli.inspect": ("comparison", "display", "examination"),
    "cli.fleet": ("control", "outlook"),
    "cli.care": ("clearance", "journey", "keyring"),
    "fleet": ("accepting", "health", "pool"),
    "checkpoint": ("model",),
    "checkpoint.care": ("copying", "inventory"),
    "stores": ("places", "prefixes"),
    "stores.around": ("fallback", "keys"),
    "stores.files": ("disk",),
}
_OTHER = {
    "fleet_status": "fleet.status",
    "fleet_worker": "fleet.worker",
    "objects_names": "stores.drivers.objects.names",
    "postgres_names": "stores.drivers.postgres.names",
    "postgres_store": "stores.drivers.postgres.store",
    "redis_links": "links.redis",
    "sqlite_care": "stores.drivers.sqlite.care",
    "sqlite_names": "stores.drivers.sqlite.names",
    "sqlite_store": "stores.drivers.sqlite.store",
    "stores": "stores",
    "waiting": "cli.fleet.wait",
}
PLACES: Final = {name: f"{folder}.{name}" for folder, names in _OWN.items() for name in names} | _OTHER
"""The name that a module has here, and where it is in the package: most have their own."""

if TYPE_CHECKING:
    from graflow_ckpt import stores
    from graflow_ckpt.checkpoint import model
    from graflow_ckpt.checkpoint.care import copying, inventory
    from graflow_ckpt.cli import client, live, locate
    from graflow_ckpt.cli.care import clearance, journey, keyring
    from graflow_ckpt.cli.fleet import control, outlook
    from graflow_ckpt.cli.fleet import wait as waiting
    from graflow_ckpt.cli.inspect import comparison, display, examination
    from graflow_ckpt.cli.run import continuation, dry_run, launch, program
    from graflow_ckpt.fleet import accepting, health, pool
    from graflow_ckpt.fleet import status as fleet_status
    from graflow_ckpt.fleet import worker as fleet_worker
    from graflow_ckpt.links import redis as redis_links
    from graflow_ckpt.stores import places, prefixes
    from graflow_ckpt.stores.around import fallback, keys
    from graflow_ckpt.stores.drivers.objects import names as objects_names
    from graflow_ckpt.stores.drivers.postgres import names as postgres_names
    from graflow_ckpt.stores.drivers.postgres import store as postgres_store
    from graflow_ckpt.stores.drivers.sqlite import care as sqlite_care
    from graflow_ckpt.stores.drivers.sqlite import names as sqlite_names
    from graflow_ckpt.stores.drivers.sqlite import store as sqlite_store
    from graflow_ckpt.stores.files import disk
else:

    def __getattr__(name: str) -> ModuleType:
        """Load a module of the table at its first use."""
        if name not in PLACES:
            raise AttributeError(name)
        return globals().setdefault(name, import_module(f"graflow_ckpt.{PLACES[name]}"))

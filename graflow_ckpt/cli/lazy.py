"""Modules that commands need only when they run: `lazy.client.client_of(…)` loads cli/client.py then.

A command's own module is loaded for its help and for each TAB of a shell, and both have a bar of 150 ms. So
what is slow to load (redis, pydantic, rich, the engine) is named here, and in no function of a command.
Not here: the commands themselves (app.py).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

__all__ = [
    "fleet_status",
    "fleet_worker",
    "objects_names",
    "postgres_names",
    "postgres_store",
    "redis_links",
    "sqlite_care",
    "sqlite_names",
    "sqlite_store",
    "waiting",
]

PLACES: Final = {
    "accepting": "fleet.accepting",
    "clearance": "cli.care.clearance",
    "client": "cli.client",
    "comparison": "cli.inspect.comparison",
    "continuation": "cli.run.continuation",
    "control": "cli.fleet.control",
    "copying": "checkpoint.care.copying",
    "disk": "stores.files.disk",
    "display": "cli.inspect.display",
    "dry_run": "cli.run.dry_run",
    "examination": "cli.inspect.examination",
    "fallback": "stores.around.fallback",
    "fleet_status": "fleet.status",
    "fleet_worker": "fleet.worker",
    "health": "fleet.health",
    "inventory": "checkpoint.care.inventory",
    "journey": "cli.care.journey",
    "keyring": "cli.care.keyring",
    "keys": "stores.around.keys",
    "launch": "cli.run.launch",
    "live": "cli.live",
    "locate": "cli.locate",
    "model": "checkpoint.model",
    "objects_names": "stores.drivers.objects.names",
    "outlook": "cli.fleet.outlook",
    "overview": "cli.overview",
    "places": "stores.places",
    "pool": "fleet.pool",
    "postgres_names": "stores.drivers.postgres.names",
    "postgres_store": "stores.drivers.postgres.store",
    "prefixes": "stores.prefixes",
    "program": "cli.run.program",
    "redis_links": "links.redis",
    "settings": "config.settings",
    "sqlite_care": "stores.drivers.sqlite.care",
    "sqlite_names": "stores.drivers.sqlite.names",
    "sqlite_store": "stores.drivers.sqlite.store",
    "stores": "stores",
    "waiting": "cli.fleet.wait",
}
"""The name that a module has here, and where it is in the package."""

if TYPE_CHECKING:
    from graflow_ckpt import stores as stores
    from graflow_ckpt.checkpoint import model as model
    from graflow_ckpt.checkpoint.care import copying as copying
    from graflow_ckpt.checkpoint.care import inventory as inventory
    from graflow_ckpt.cli import client as client
    from graflow_ckpt.cli import live as live
    from graflow_ckpt.cli import locate as locate
    from graflow_ckpt.cli import overview as overview
    from graflow_ckpt.cli.care import clearance as clearance
    from graflow_ckpt.cli.care import journey as journey
    from graflow_ckpt.cli.care import keyring as keyring
    from graflow_ckpt.cli.fleet import control as control
    from graflow_ckpt.cli.fleet import outlook as outlook
    from graflow_ckpt.cli.fleet import wait as waiting
    from graflow_ckpt.cli.inspect import comparison as comparison
    from graflow_ckpt.cli.inspect import display as display
    from graflow_ckpt.cli.inspect import examination as examination
    from graflow_ckpt.cli.run import continuation as continuation
    from graflow_ckpt.cli.run import dry_run as dry_run
    from graflow_ckpt.cli.run import launch as launch
    from graflow_ckpt.cli.run import program as program
    from graflow_ckpt.config import settings as settings
    from graflow_ckpt.fleet import accepting as accepting
    from graflow_ckpt.fleet import health as health
    from graflow_ckpt.fleet import pool as pool
    from graflow_ckpt.fleet import status as fleet_status
    from graflow_ckpt.fleet import worker as fleet_worker
    from graflow_ckpt.links import redis as redis_links
    from graflow_ckpt.stores import places as places
    from graflow_ckpt.stores import prefixes as prefixes
    from graflow_ckpt.stores.around import fallback as fallback
    from graflow_ckpt.stores.around import keys as keys
    from graflow_ckpt.stores.drivers.objects import names as objects_names
    from graflow_ckpt.stores.drivers.postgres import names as postgres_names
    from graflow_ckpt.stores.drivers.postgres import store as postgres_store
    from graflow_ckpt.stores.drivers.sqlite import care as sqlite_care
    from graflow_ckpt.stores.drivers.sqlite import names as sqlite_names
    from graflow_ckpt.stores.drivers.sqlite import store as sqlite_store
    from graflow_ckpt.stores.files import disk as disk
else:

    def __getattr__(name: str) -> ModuleType:
        """Load a module of the table at its first use."""
        if name not in PLACES:
            raise AttributeError(name)
        return globals().setdefault(name, import_module(f"graflow_ckpt.{PLACES[name]}"))

"""Configuration: the options that say which fleet is meant, and what was resolved of them and other sources.

`--url` and its like do not become arguments of a command: they are gathered per call of the command
line, so that `sessions --url … purge` and `sessions purge --url …` mean the same. pydantic is loaded
when somebody asks for what they come to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from graflow_ckpt.interfaces.cli.options import F, complete_files
from graflow_ckpt.interfaces.sources import CONFIG_VARIABLE, FILE_NAME, BadSetting, gather, variable

if TYPE_CHECKING:
    from graflow_ckpt.interfaces.settings import Resolved

_KEPT = "graflow_ckpt.flags"
_CONFIG = "graflow_ckpt.config"


class NoFleet(BadSetting):
    """No server was named anywhere."""


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # Any: whatever was typed
    if value is None:
        return
    if parameter.name == "config":
        ctx.meta[_CONFIG] = value
    elif parameter.name is not None:
        ctx.meta.setdefault(_KEPT, {})[parameter.name] = value


def kept(*flags: str, **options: Any) -> Callable[[F], F]:  # Any: what click.option takes
    """An option that is a setting; its name is the setting's."""
    return click.option(*flags, callback=_keep, expose_value=False, **options)


def fleet(function: F) -> F:
    """`--url`, `--rq-url` and `--config`: of every command that speaks to a fleet."""
    for option in reversed((
        kept("--url", "redis_url", metavar="URL",
             help=f"The fleet's server; better {variable('redis_url')}: others can see a flag."),
        kept("--rq-url", metavar="URL", help="The server of RQ's queues, if that is another one."),
        kept("--config", metavar="FILE", shell_complete=complete_files,
             help=f"Settings, instead of {FILE_NAME}; also {CONFIG_VARIABLE}."),
    )):  # fmt: skip
        function = option(function)
    return function


def is_server(store: str) -> bool:
    """Whether a fleet can be there: at the address of a Redis server, and of nothing else."""
    from graflow_ckpt.links.addresses import SCHEMES

    scheme, separator, _ = store.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def name(ctx: click.Context, url: str) -> None:
    """As if `--url` had been typed."""
    ctx.meta.setdefault(_KEPT, {})["redis_url"] = url


def named(ctx: click.Context) -> bool:
    """Was a fleet named on the command line?"""
    return "redis_url" in ctx.meta.get(_KEPT, {})


def configured(ctx: click.Context) -> bool:
    """Is a fleet named anywhere? Checks nothing, so that pydantic is not needed to find out."""
    return "redis_url" in gather(ctx.meta.get(_KEPT), ctx.meta.get(_CONFIG)).values


def settings(ctx: click.Context) -> Resolved:
    """All settings as they count."""
    given = gather(ctx.meta.get(_KEPT), ctx.meta.get(_CONFIG))
    from graflow_ckpt.interfaces.settings import resolve

    return resolve(given)


def with_fleet(ctx: click.Context) -> Resolved:
    """The same, and a server has to be named; from here on this process's environment says so, too."""
    resolved = settings(ctx)
    if resolved.url is None:
        raise NoFleet(
            "Which fleet? No server is named.",
            hint=f"Set {variable('redis_url')}, write redis_url into [fleet] of {FILE_NAME}, or give --url.",
        )
    resolved.export()
    return resolved

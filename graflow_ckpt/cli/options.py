"""Options that several commands share, and what a shell completes for their arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.config.sources import CONFIG_VARIABLE, FILE_NAME, BadSetting, gather
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.links.addresses import SCHEMES
from graflow_ckpt.links.environment import variable

if TYPE_CHECKING:
    from graflow_ckpt.config.settings import Resolved

# Any: click's decorators take whatever functions commands are.
F = TypeVar("F", bound=Callable[..., Any])
TAKE_OVER = "Take the session from a living owner; in a folder that process is ended, after a question."


def manner_of(ctx: click.Context) -> Manner:
    found = ctx.find_object(Manner)
    return found if found is not None else ctx.ensure_object(Manner)


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--traceback`: to every command; its context has what they say in its manner."""
    text = "Show where an error of graflow-ckpt comes from."
    return as_json(_flag("--traceback", "traceback", text)(function))


def as_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` alone, for a command that has another `--traceback`."""
    return _flag("--json", "json", "JSON instead of text.")(click.pass_context(function))


def _flag(flag: str, name: str, text: str) -> Callable[[F], F]:
    def note(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            setattr(manner_of(ctx), name, True)

    return click.option(flag, is_flag=True, is_eager=True, expose_value=False, callback=note, help=text)


def _typed(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion that the shell itself does: of a folder, of a file."""
    return lambda ctx, parameter, incomplete: [CompletionItem(incomplete, type=kind)]


complete_folders, complete_files = _typed("dir"), _typed("file")


def default_store() -> str:
    return lazy.places.for_command_line()


def store(function: F) -> F:
    """Add `--store`, with the same default as a program's."""
    return _store_option(words.parse_store, "checkpoints")(function)


def found_store(function: F) -> F:
    """Add `--store` of a command that looks for something: by default all places used."""
    return _store_option(_parse_store, "checkpoints, then all places used")(function)


def _store_option(callback: Callable[..., Any], shown: str) -> Callable[[F], F]:
    return click.option(
        "--store", default=default_store, show_default=shown, metavar="FOLDER|URL", callback=callback,
        shell_complete=complete_folders,
        help="Where the checkpoints are; also GRAFLOW_CKPT_STORE. sqlite:// is the user's own database.",
    )  # fmt: skip


_NAMES = ("what", "session", "sessions", "its", "a", "b", "workflow")
"""Parameters of commands that name what is looked for."""


def _parse_store(ctx: click.Context, parameter: click.Parameter, given: str) -> str | None:
    """Return the store that was typed, else the place that has what the command names."""
    store = words.parse_store(ctx, parameter, given)
    source = ctx.get_parameter_source(str(parameter.name))
    if store is None or ctx.resilient_parsing or source is not ParameterSource.DEFAULT:
        return store
    named = [ctx.params[name] for name in _NAMES if ctx.params.get(name)]
    names = [name for value in named for name in ((value,) if isinstance(value, str) else value)]

    return lazy.locate.place_of(manner_of(ctx), store, names)


def of_program(function: F) -> F:
    """Add what `run` and `submit` have in common: a program, its arguments, and inputs."""
    for option in reversed((
        click.argument("target", metavar="FILE.py|MODULE[:WORKFLOW]", shell_complete=complete_files),
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]"),
        click.option("--input", "inputs", multiple=True, callback=words.parse_inputs, metavar="NAME=VALUE",
                     help="An input of the workflow: JSON if it parses, else text."),
    )):  # fmt: skip
        function = option(function)
    return function


def running(function: F) -> F:
    """Add what `run` and `resume` have in common."""
    for option in reversed((
        click.option("--max-steps", type=click.IntRange(min=1), metavar="N",
                     help="Stop after so many steps, counted over all resumes."),
        click.option("--durability", type=click.Choice(["auto", "checkpoint", "journal", "none"]),
                     help="What survives a crash: every commit, large values within a budget of time (auto); "
                     "the newest checkpoint; every commit (journal); or nothing."),
        click.option("--every", "policy", multiple=True, callback=words.parse_every, metavar="N|30s",
                     help="Checkpoint every N steps or every 30s; may be repeated."),
        click.option("--changed", type=click.Choice(["reuse", "rerun"]),
                     help="What to do with completed tasks that have changed since."),
        click.option("--in-doubt", multiple=True, callback=words.parse_answers,
                     metavar="TASK=rerun|skip|fail",
                     help="What to do with a task that was running when its process died."),
        click.option("--until-damage", is_flag=True,
                     help="Use a damaged journal up to the damage; what was committed after it is lost."),
        click.option("--take-over", is_flag=True, help=TAKE_OVER),
        click.option("--yes", is_flag=True, help="With --take-over: do not ask before a process is ended."),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
                     help="Show what the engine logs."),
        click.option("--progress/--no-progress", default=True, help="Show what goes on while it runs."),
    )):  # fmt: skip
        function = option(function)
    return function


# --- which fleet ---------------------------------------------------------------------------

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
    """Return an option that is a setting; its name is the setting's."""
    return click.option(*flags, callback=_keep, expose_value=False, **options)


def fleet(function: F) -> F:
    """Add `--url`, `--rq-url` and `--config`: to every command that speaks to a fleet.

    They do not become arguments of a command: they are gathered per call of the command line, so that
    `sessions --url … purge` and `sessions purge --url …` mean the same. pydantic is loaded when a
    command asks for their values.
    """
    for option in reversed((
        kept("--url", "redis_url", metavar="URL",
             help=f"The fleet's server; better {variable('redis_url')}: others can see a flag."),
        kept("--rq-url", metavar="URL", help="The server of RQ's queues, if that is another one."),
        kept("--config", metavar="FILE", shell_complete=complete_files,
             help=f"Settings, instead of {FILE_NAME}; also {CONFIG_VARIABLE}."),
    )):  # fmt: skip
        function = option(function)
    return function


def of_fleet(function: F) -> F:
    """Add the same to a command that needs a fleet: one not named is reported before a missing package."""

    @wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:  # Any: of the command that it wraps
        if not configured(click.get_current_context()):
            raise no_fleet()
        return function(*arguments, **options)

    return fleet(cast("F", checked))


def is_server(store: str) -> bool:
    """Return True if a fleet can be there: at the address of a Redis server, and of nothing else."""
    scheme, separator, _ = store.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def name_fleet(ctx: click.Context, url: str) -> None:
    """Name a fleet as if `--url` had been typed."""
    ctx.meta.setdefault(_KEPT, {})["redis_url"] = url


def named(ctx: click.Context) -> bool:
    """Return True if a fleet was named on the command line."""
    return "redis_url" in ctx.meta.get(_KEPT, {})


def configured(ctx: click.Context) -> bool:
    """Return True if a fleet is named anywhere. Checks nothing, so that pydantic is not needed."""
    return "redis_url" in gather(ctx.meta.get(_KEPT), ctx.meta.get(_CONFIG)).values


def settings(ctx: click.Context) -> Resolved:
    """Return all settings as they count."""
    given = gather(ctx.meta.get(_KEPT), ctx.meta.get(_CONFIG))

    return lazy.settings.resolve(given)


def with_fleet(ctx: click.Context) -> Resolved:
    """Return the same; refuse if no server is named. This process's environment has it from now on."""
    resolved = settings(ctx)
    if resolved.url is None:
        raise no_fleet()
    resolved.export()
    return resolved


def no_fleet() -> NoFleet:
    return NoFleet(
        "Which fleet? No server is named.",
        hint=f"Set {variable('redis_url')}, write redis_url into [fleet] of {FILE_NAME}, or give --url. "
        "A session in a store needs none: graflow-ckpt sessions, resume, checkpoints.",
    )


# --- completion ----------------------------------------------------------------------------


def _named_store(ctx: click.Context) -> str:
    return str(ctx.params.get("store") or ctx.params.get("origin") or default_store())


def store_or_fleet() -> click.UsageError:
    """Return what to raise where both a store and a fleet are named."""
    return click.UsageError("--store is for sessions of a store, --url for those of a fleet: one of them.")


def complete_sessions(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    found = session_names(_named_store(ctx)).items()
    return [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)]


def complete_remote(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Complete sessions of the fleet that is set up; a server that does not answer at once counts as none."""
    if not configured(ctx):
        return []  # without loading what speaks to servers
    return [CompletionItem(name) for name in lazy.client.some_sessions(ctx) if name.startswith(incomplete)]


def complete_everywhere(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Complete sessions of the fleet and of the store, and the paths of checkpoints."""
    remote = [] if os.sep in incomplete else complete_remote(ctx, parameter, incomplete)
    return complete_places(ctx, parameter, incomplete) + remote


def complete_places(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Complete sessions and the paths of checkpoints."""
    store = _named_store(ctx)
    folder = os.path.dirname(incomplete) if os.sep in incomplete else store
    paths = [CompletionItem(path) for path in checkpoint_paths(folder) if path.startswith(incomplete)]
    folders = complete_folders(ctx, parameter, incomplete) if os.sep in incomplete else []
    return complete_sessions(ctx, parameter, incomplete) + (paths or folders)


# What file names alone say, or a database on this machine. No checkpoint is opened, so that a tab costs one
# listing of a folder, or one query. Servers are not asked: a user would wait for them. What is offered is
# checked by the command that gets it.

_OWN = re.compile(r"session_([A-Za-z0-9_-]{1,64})_step_(\d+)_(\d+)-(\d+)\.meta\.json\Z")
_META = ".meta.json"
_MANY = 500  # checkpoints that are looked at for ids


def session_names(folder: str) -> dict[str, str]:
    """Return sessions that have checkpoints in a folder, and how far the newest is."""
    if lazy.sqlite_names.is_sqlite(folder):
        return _in_database(folder)
    newest: dict[str, tuple[int, str]] = {}
    for name in _listing(folder):
        match = _OWN.match(name)
        if match is not None:
            entry = int(match[4]), f"step {match[2]}"
            newest[match[1]] = max(newest.get(match[1], entry), entry)
    return {session: text for session, (_, text) in sorted(newest.items())}


def _in_database(store: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for path, raw in lazy.stores.open_store(store).newest(_MANY):
            cut = lazy.inventory.cut_of(path, raw)
            if cut is not None:
                found.setdefault(cut.session, cut.status)
    except GraflowError:
        return {}
    return dict(sorted(found.items()))


def checkpoint_paths(folder: str) -> list[str]:
    """Return the checkpoints in a folder."""
    found = [name.removesuffix(_META) + ".pkl" for name in _listing(folder) if name.endswith(_META)]
    return [os.path.join(folder, name) for name in sorted(found)]


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder.removeprefix("file://") or ".")
    except OSError:
        return []

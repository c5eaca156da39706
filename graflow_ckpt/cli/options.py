"""Options that several commands share, and what a shell completes for their arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from inspect import cleandoc
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.config import settings
from graflow_ckpt.core.errors import BadSetting, GraflowError
from graflow_ckpt.links.addresses import SCHEMES
from graflow_ckpt.links.environment import variable

Function = Callable[..., Any]  # Any: click's decorators take whatever functions commands are
Decorator = Callable[[Function], Function]


def manner_of(ctx: click.Context) -> Manner:
    found = ctx.find_object(Manner)
    return found if found is not None else ctx.ensure_object(Manner)


class Described(click.Command):
    """Its docstring ends with examples, which its help has last, as they are written."""

    def __init__(self, name: str | None, help: str | None = None, **attributes: Any) -> None:  # noqa: A002
        text, begin, examples = cleandoc(help or "").partition("\n\nExamples:\n")  # indented before 3.13
        if begin:
            parts = f"Examples:\n{examples}".split("\n\n")
            attributes["epilog"] = "\n\n".join(f"\b\n{part}" for part in parts)
        super().__init__(name, help=text, **attributes)


class Command(Described):
    """Has `--json` and `--traceback`, and is called with the manner that they set."""

    def __init__(
        self, name: str | None, params: list[click.Parameter], callback: Function, **attributes: Any
    ) -> None:
        common = [_flag("--traceback", "Show where an error of graflow-ckpt comes from.")]
        if any("--traceback" in parameter.opts for parameter in params):  # one of its own
            common = []
        params = [*params, _flag("--json", "JSON instead of text."), *common]
        super().__init__(name, params=params, callback=_with_manner(callback), **attributes)


class DescribedGroup(Described, click.Group):
    command_class = Command


class CommandGroup(Command, click.Group):
    """A group that does something by itself."""

    command_class = Command


def command(name: str, short_help: str | None = None) -> Callable[[Function], Command]:
    return click.command(name, cls=Command, short_help=short_help)


def group(name: str) -> Callable[[Function], DescribedGroup]:
    return click.group(name, cls=DescribedGroup)


def _with_manner(function: Function) -> Function:
    @wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        return function(manner_of(click.get_current_context()), *arguments, **options)

    return called


def _flag(name: str, text: str) -> click.Option:
    def note(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            setattr(manner_of(ctx), name.strip("-"), True)

    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, callback=note, help=text)


def typed(name: str) -> bool:
    """Return True if this parameter of the command that runs stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def each(*options: Decorator) -> Decorator:
    """Return all of these as one decorator; the help has them in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _typed(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion that the shell itself does: of a folder, of a file."""
    return lambda ctx, parameter, incomplete: [CompletionItem(incomplete, type=kind)]


complete_folders, complete_files = _typed("dir"), _typed("file")


# --- completion --------------------------------------------------------------------------


def default_store() -> str:
    return lazy.places.for_command_line()


def _named_store(ctx: click.Context) -> str:
    return str(ctx.params.get("store") or ctx.params.get("origin") or default_store())


def complete_sessions(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    found = session_names(_named_store(ctx)).items()
    return [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)]


def complete_remote(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Complete sessions of the fleet that is set up; a server that does not answer at once counts as none."""
    if not configured(manner_of(ctx)):
        return []  # without loading what speaks to servers
    return [
        CompletionItem(name)
        for name in lazy.client.some_sessions(manner_of(ctx))
        if name.startswith(incomplete)
    ]


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


# --- options -----------------------------------------------------------------------------

COUNT = click.IntRange(min=1)

take_over = click.option(
    "--take-over", is_flag=True,
    help="Take the session from a living owner; in a folder that process is ended, after a question.",
)  # fmt: skip
unasked = click.option("--yes", is_flag=True, help="Do not ask.")
unasked_end = click.option(
    "--yes", is_flag=True, help="With --take-over: do not ask before a process is ended."
)
of_workflow = click.option("--workflow", metavar="NAME", help="Only of this workflow.")
newest = click.option("--limit", type=COUNT, metavar="N", help="The newest N.")
remote_session = click.argument("session", shell_complete=complete_remote)
places = click.argument("what", nargs=-1, metavar="[SESSION|PATH]…", shell_complete=complete_places)


def store(function: Function) -> Function:
    """Add `--store`, with the same default as a program's."""
    return _store_option(words.parse_store, "checkpoints")(function)


def found_store(function: Function) -> Function:
    """Add `--store` of a command that looks for something: by default all places used."""
    return _store_option(_parse_store, "checkpoints, then all places used")(function)


def _store_option(callback: Callable[..., Any], shown: str) -> Decorator:
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


of_program = each(
    click.argument("target", metavar="FILE.py|MODULE[:WORKFLOW]", shell_complete=complete_files),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]"),
    click.option("--input", "inputs", multiple=True, callback=words.parse_inputs, metavar="NAME=VALUE",
                 help="An input of the workflow: JSON if it parses, else text."),
)  # fmt: skip
"""What `run` and `submit` have in common: a program, its arguments, and inputs."""

running = each(
    click.option("--max-steps", type=COUNT, metavar="N",
                 help="Stop after so many steps, counted over all resumes."),
    click.option("--durability", type=click.Choice(["auto", "checkpoint", "journal", "none"]),
                 help="What survives a crash: every commit, large values within a budget of time (auto); "
                 "the newest checkpoint; every commit (journal); or nothing."),
    click.option("--every", "policy", multiple=True, callback=words.parse_every, metavar="N|30s",
                 help="Checkpoint every N steps or every 30s; may be repeated."),
    click.option("--changed", type=click.Choice(["reuse", "rerun"]),
                 help="What to do with completed tasks that have changed since."),
    click.option("--in-doubt", multiple=True, callback=words.parse_answers, metavar="TASK=rerun|skip|fail",
                 help="What to do with a task that was running when its process died."),
    click.option("--until-damage", is_flag=True,
                 help="Use a damaged journal up to the damage; what was committed after it is lost."),
    take_over,
    unasked_end,
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
                 help="Show what the engine logs."),
    click.option("--progress/--no-progress", default=True, help="Show what goes on while it runs."),
)  # fmt: skip
"""What `run` and `resume` have in common."""


# --- which fleet ---------------------------------------------------------------------------


class NoFleet(BadSetting):
    """No server was named anywhere."""


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # Any: whatever was typed
    manner = manner_of(ctx)
    if value is not None and parameter.name == "config":
        manner.config = value
    elif value is not None and parameter.name is not None:
        manner.flags[parameter.name] = value


def kept(*flags: str, **options: Any) -> Decorator:  # Any: what click.option takes
    """Return an option that is a setting; its name is the setting's."""
    return click.option(*flags, callback=_keep, expose_value=False, **options)


fleet = each(
    kept("--url", "redis_url", metavar="URL",
         help=f"The fleet's server; better {variable('redis_url')}: others can see a flag."),
    kept("--rq-url", metavar="URL", help="The server of RQ's queues, if that is another one."),
    kept("--config", metavar="FILE", shell_complete=complete_files,
         help=f"Settings, instead of {settings.FILE_NAME}; also {settings.CONFIG_VARIABLE}."),
)  # fmt: skip
"""`--url`, `--rq-url` and `--config`, for every command that speaks to a fleet. They do not become arguments
of a command: they are gathered per call of the command line, so that `sessions --url … purge` and
`sessions purge --url …` mean the same."""


def of_fleet(function: Function) -> Function:
    """Add the same to a command that needs a fleet: one not named is reported before a missing package."""

    @wraps(function)
    def checked(manner: Manner, /, **options: Any) -> Any:
        if not configured(manner):
            raise no_fleet()
        return function(manner, **options)

    return fleet(checked)


def is_server(store: str) -> bool:
    """Return True if a fleet can be there: at the address of a Redis server, and of nothing else."""
    scheme, separator, _ = store.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def named(manner: Manner) -> bool:
    """Return True if a fleet was named on the command line."""
    return "redis_url" in manner.flags


def configured(manner: Manner) -> bool:
    """Return True if a fleet is named anywhere. Checks nothing."""
    return "redis_url" in settings.gather(manner.flags, manner.config).values


def resolved(manner: Manner) -> settings.FleetSettings:
    """Return all settings as they count."""
    return settings.resolve(settings.gather(manner.flags, manner.config))


def with_fleet(manner: Manner) -> settings.FleetSettings:
    """Return the same; refuse if no server is named. This process's environment has it from now on."""
    found = resolved(manner)
    if not found.redis_url:
        raise no_fleet()
    found.export()
    return found


def no_fleet() -> NoFleet:
    return NoFleet(
        "Which fleet? No server is named.",
        hint=f"Set {variable('redis_url')}, write redis_url into [fleet] of {settings.FILE_NAME}, or give "
        "--url. A session in a store needs none: graflow-ckpt sessions, resume, checkpoints.",
    )


def store_or_fleet() -> click.UsageError:
    """Return what to raise where both a store and a fleet are named."""
    return click.UsageError("--store is for sessions of a store, --url for those of a fleet: one of them.")

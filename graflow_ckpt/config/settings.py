"""Settings of a fleet: where each of them comes from, and what it may be.

    graflow-ckpt.toml      in the working folder or one above it, or where --config or
    [fleet]                GRAFLOW_CKPT_CONFIG says; keys are the variables' names in small letters
    queues = ["gpu"]       and without GRAFLOW_CKPT_

Flags win over the environment, the environment over a file, a file over defaults.

Promise: what a command gets is complete and of the right kind. What is not is refused with the place that
says so (a flag, a variable, a file and its key) and with what is allowed there. Neither a key nor a password
is in any message or repr. A file that the user has not named and that another user could have put there is
refused: it says whose code is run. Not here: the flags themselves (cli/options.py).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from graflow_ckpt.core.errors import BadAddress, BadSetting, CheckpointError, GraphError
from graflow_ckpt.links.addresses import masked, parse
from graflow_ckpt.links.environment import NAMES, PREFIX, variable

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
FILE_NAME = "graflow-ckpt.toml"
SECTION = "fleet"

FLAGS = {"redis_url": "--url"} | {
    name: f"--{name.replace('_', '-')}" for name in NAMES if name not in ("redis_url", "key", "key_file")
}

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PERIOD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|)\s*\Z")
_MAKER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


# --- what a setting may be: each makes the value of what was said, or raises an error ----


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _address(value: object) -> str:
    parse(_text(value))
    return _text(value)


def _key(value: object) -> str:
    from graflow_ckpt.stores.around.keys import Keyring

    Keyring.load({"GRAFLOW_CKPT_KEY": _text(value)}, local=False)
    return _text(value)


def _words(value: object) -> tuple[str, ...]:
    """Split `"a, b"` into words; `["a", "b"]` has them already."""
    words = [word for word in re.split(r"[,\s]+", value) if word] if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise TypeError(value)
    return tuple(map(_text, words))


def _queues(value: object) -> tuple[str, ...]:
    from graflow_ckpt.sessions.redis.names import check_queue

    if not (names := _words(value)):
        raise ValueError(value)
    return tuple(dict.fromkeys(check_queue(name) for name in names))


def _makers(value: object) -> tuple[str, ...]:
    names = _words(value)
    for name in names:
        if not _MAKER.match(name):
            raise GraphError(f"{name!r} does not name what makes an observer.", hint="Write MODULE:NAME.")
    return tuple(dict.fromkeys(names))


def _count(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or number != float(value) or not 1 <= number <= 1024:
        raise ValueError(value)
    return number


def _period(least: float, most: float) -> Callable[[Any], float]:
    """Return what reads `30`, `"30"`, `"30s"`, `"5m"` as seconds between the two."""

    def read(value: Any) -> float:
        match = _PERIOD.match(value) if isinstance(value, str) else None
        seconds = float(match[1]) * UNITS[match[2] or "s"] if match else float(value)
        if not least <= seconds <= most:
            raise ValueError(value)
        return seconds

    return read


def _log(value: object) -> str:
    if value not in ("text", "json"):
        raise ValueError(value)
    return _text(value)


# --- the settings ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value."""

    kind: str  # flag, environment, file or default
    where: str = ""  # the flag, the variable, or the path of the file

    def of(self, name: str) -> str:
        """Return the name that errors use."""
        return f"{name} in [{SECTION}] of {self.where}" if self.kind == "file" else self.where or name


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Given:
    """The values that some source sets, and the source of each; a value that none sets is not in it."""

    values: dict[str, Any] = field(default_factory=dict, repr=False)  # Any: not validated yet
    origins: dict[str, Origin] = field(default_factory=dict)
    file: str | None = None  # that was read


def _setting(default: Any, read: Callable[[Any], Any], allowed: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"read": read, "allowed": allowed})


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The settings that commands of a fleet use, and the source of each."""

    redis_url: str = _setting("", _address, "an address such as redis://:PASSWORD@host:6379/0", secret=True)
    rq_url: str = _setting("", _address, "the address of a server of its own for RQ", secret=True)
    key: str = _setting("", _key, "what graflow-ckpt key new prints", secret=True)
    key_file: str = _setting("", _text, "the path of a file with a key in it")
    queues: tuple[str, ...] = _setting(
        ("default",), _queues, "names of queues, the first one first: default,gpu"
    )
    workers: int = _setting(1, _count, "a whole number from 1 to 1024")
    preload: tuple[str, ...] = _setting((), _words, "names of modules: my.tasks,my.models")
    lease: float = _setting(15.0, _period(1, 3600), "from 1s to 1h")
    budget: float = _setting(2.0, _period(0.01, 300), "from 10ms to 5m")
    grace: float = _setting(30.0, _period(0, 86400), "from 0s to 24h")
    code_patience: float = _setting(60.0, _period(0, 86400), "from 0s to 24h")
    log: Literal["text", "json"] = _setting("text", _log, "text or json")
    observers: tuple[str, ...] = _setting(
        (), _makers, "what makes an observer: my.watching:metrics,my.watching:traces"
    )
    given: Given = field(default_factory=Given)

    def origin(self, name: str) -> Origin:
        return self.given.origins.get(name, DEFAULT)

    def shown(self, name: str) -> str:
        """Return a value without what is secret in it."""
        match getattr(self, name):
            case str(url) if url and name in ("redis_url", "rq_url"):
                return str(parse(url))
            case str(keys) if name == "key":
                return ", ".join(key.partition(":")[0] for key in keys.replace(",", " ").split())
            case tuple(words):
                return ",".join(words)
            case float(seconds):
                return f"{seconds:g}s"
            case value:
                return str(value)

    def export(self, environment: Any = os.environ) -> None:  # Any: os.environ is a mapping of its own
        """Export what was resolved to the environment of this process: programs and tasks that submit
        something find the same fleet and the same key. Passwords that the environment knew are remembered: an
        address may have been given without one.
        """
        if known := environment.get(variable("redis_url"), "").strip():
            with suppress(BadAddress):
                parse(known).remember()
        for name in ("redis_url", "rq_url", "key", "key_file"):
            if value := getattr(self, name):
                environment[variable(name)] = value
            else:
                environment.pop(variable(name), None)


def resolve(given: Given) -> FleetSettings:
    """Check everything that was said; raise the error of the first mistake, with its place."""
    values: dict[str, Any] = {}
    for setting in fields(FleetSettings):
        name = setting.name
        if name not in given.values:
            continue
        value, origin = given.values[name], given.origins.get(name, DEFAULT)
        try:
            values[name] = setting.metadata["read"](value)
            continue
        except (BadAddress, CheckpointError, GraphError) as error:  # what our own checks have to say
            message, hint = f"{origin.of(name)} cannot be used: {error.message}", error.hint
        except (TypeError, ValueError, OverflowError):
            said = f"is {masked(str(value))!r}" if setting.repr else "is no text"
            message, hint = f"{origin.of(name)} {said}.", f"Allowed: {setting.metadata['allowed']}."
        raise BadSetting(message, hint=hint, setting=name, where=origin.where)
    return FleetSettings(**values, given=given)


def gather(
    flags: Mapping[str, Any] | None = None,
    config: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Given:
    """Return all sources together. An empty variable counts as none."""
    path = find(config, environment)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}

    def take(found: Mapping[str, Any], origin: Mapping[str, Origin]) -> None:
        if {"key", "key_file"} & found.keys():  # one setting in two forms
            for name in ("key", "key_file"):
                values.pop(name, None)
                origins.pop(name, None)
        values.update(found)
        origins.update(origin)

    if path is not None:
        table = read(path, named=bool(config or environment.get(CONFIG_VARIABLE)))
        if isinstance(
            table.get("key_file"), str
        ):  # beside the file that speaks of it, not wherever one works
            table["key_file"] = str(path.parent / table["key_file"])
        take(table, dict.fromkeys(table, Origin("file", str(path))))
    said = {name: text for name in NAMES if (text := environment.get(variable(name), "").strip())}
    take(said, {name: Origin("environment", variable(name)) for name in said})
    typed = {name: value for name, value in (flags or {}).items() if value is not None}
    take(typed, {name: Origin("flag", FLAGS[name]) for name in typed})
    return Given(values, origins, None if path is None else str(path))


# --- the file --------------------------------------------------------------------------


def find(config: str | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that is named, else the nearest one from the working folder up."""
    if named := config or environment.get(CONFIG_VARIABLE, "").strip():
        return Path(named)
    folder = Path.cwd()
    for place in (folder, *folder.parents):
        if (path := place / FILE_NAME).is_file():
            return path
    return None


def read(path: Path, *, named: bool) -> dict[str, Any]:
    """Return its section [fleet]; refuse any other section, and any key that is none of ours."""
    import tomllib

    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            document = tomllib.load(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadSetting(f"The settings in {path} cannot be read: {why}.", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(
            f"{path} is not TOML: {error}.", hint='Lines are written: name = "value".', where=str(path)
        ) from error
    table = document.pop(SECTION, {})
    if document or not isinstance(table, dict):
        name = next(iter(document), SECTION)
        raise BadSetting(
            f"{path} has {name!r}, which is not a section of it.",
            hint=f"Settings stand below a line [{SECTION}].",
            where=str(path),
        )
    _check_names(path, table)
    _check_owner(path, found, named=named, secret="key" in table)
    return table


def _check_names(path: Path, table: Mapping[str, Any]) -> None:
    strange = [name for name in table if name not in NAMES]
    if strange:
        raise BadSetting(
            f"{path} has {strange[0]!r} in [{SECTION}], which is not a setting.",
            hint=f"{_meant(strange[0])}There are: {', '.join(NAMES)}.",
            where=str(path),
            names=strange,
        )


def _meant(name: str) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name.lower().replace("-", "_").removeprefix("graflow_ckpt_"), NAMES, 1)
    return f"Is {found[0]} meant? " if found else ""


def _check_owner(path: Path, found: os.stat_result, *, named: bool, secret: bool) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH:
        why = "every user can change it"
    elif not named and found.st_uid not in (os.geteuid(), 0):
        why = f"it belongs to user {found.st_uid}"
    elif not named and secret and mode & 0o077:
        why = "it has a key in it, and others can read it"
    else:
        return
    raise BadSetting(
        f"The settings in {path} are not used: {why}.",
        hint=f"chmod go= {path}, or, if it is meant, name it: {CONFIG_VARIABLE} or --config."
        if not mode & stat.S_IWOTH
        else f"chmod o-w {path}.",
        where=str(path),
    )

"""Settings of a fleet, checked where they come in: the only module that needs pydantic.

Promise: what a command gets is complete and of the right kind. What is not is refused with the
place that says so (a flag, a variable, a file and its key) and with what is allowed there. Neither
a key nor a password is in any message or repr.
Not here: where values come from (sources.py), and the flags themselves (cli/options.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from graflow_ckpt.config.sources import DEFAULT, BadSetting, Given, Origin
from graflow_ckpt.core.errors import BadAddress, CheckpointError, GraphError, not_installed
from graflow_ckpt.links.addresses import masked, parse
from graflow_ckpt.links.environment import variable

try:
    from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
    from pydantic import field_validator as checked
except ModuleNotFoundError as missing:
    raise not_installed(missing, "Settings of a fleet cannot be read", "fleet") from missing

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAKER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_PERIOD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|)\s*\Z")


def _seconds(value: object) -> object:
    """Convert `30`, `"30"`, `"30s"`, `"5m"` to seconds; anything else is left for the model to refuse."""
    match = _PERIOD.match(value) if isinstance(value, str) else None
    return float(match[1]) * _SECONDS[match[2]] if match else value


def _words(value: object) -> object:
    """Split `"a, b"` into words; `["a", "b"]` is left as it is."""
    return [word for word in re.split(r"[,\s]+", value) if word] if isinstance(value, str) else value


def _number(value: object) -> object:
    """Return a boolean as text, which the model refuses: it would pass as a number."""
    return str(value) if isinstance(value, bool) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


def _period(default: float, least: float, most: float, allowed: str) -> Any:
    return Field(default, ge=least, le=most, description=allowed)


class FleetSettings(BaseModel):
    """What the commands of a fleet go by. The description of a field says what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    redis_url: SecretStr | None = Field(None, description="an address such as redis://:PASSWORD@host:6379/0")
    rq_url: SecretStr | None = Field(None, description="the address of a server of its own for RQ")
    key: SecretStr | None = Field(None, description="what graflow-ckpt key new prints")
    key_file: str | None = Field(None, description="the path of a file with a key in it")
    queues: Words = Field(
        ("default",), min_length=1, description="names of queues, the first one first: default,gpu"
    )
    workers: Annotated[int, BeforeValidator(_number)] = Field(
        1, ge=1, le=1024, description="a whole number from 1 to 1024"
    )
    preload: Words = Field((), description="names of modules: my.tasks,my.models")
    lease: Annotated[float, BeforeValidator(_seconds)] = _period(15.0, 1, 3600, "from 1s to 1h")
    budget: Annotated[float, BeforeValidator(_seconds)] = _period(2.0, 0.01, 300, "from 10ms to 5m")
    grace: Annotated[float, BeforeValidator(_seconds)] = _period(30.0, 0, 86400, "from 0s to 24h")
    code_patience: Annotated[float, BeforeValidator(_seconds)] = _period(60.0, 0, 86400, "from 0s to 24h")
    log: Literal["text", "json"] = Field("text", description="text or json")
    observers: Words = Field((), description="what makes an observer: my.watching:metrics,my.watching:traces")

    @checked("redis_url", "rq_url")
    @classmethod
    def _is_address(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse(value.get_secret_value())
        return value

    @checked("key")
    @classmethod
    def _is_key(cls, value: SecretStr | None) -> SecretStr | None:
        from graflow_ckpt.stores.around.keys import Keyring

        if value is not None:
            Keyring.load({"GRAFLOW_CKPT_KEY": value.get_secret_value()}, local=False)
        return value

    @checked("queues")
    @classmethod
    def _are_queues(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from graflow_ckpt.sessions.redis.names import check_queue

        return tuple(dict.fromkeys(check_queue(name) for name in value))

    @checked("observers")
    @classmethod
    def _are_makers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _MAKER.match(name):
                raise GraphError(f"{name!r} does not name what makes an observer.", hint="Write MODULE:NAME.")
        return tuple(dict.fromkeys(value))


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings as they count, and where each of them comes from."""

    fleet: FleetSettings
    origins: Mapping[str, Origin]
    file: str | None

    def origin(self, name: str) -> Origin:
        return self.origins.get(name, DEFAULT)

    @property
    def url(self) -> str | None:
        """With its password: to connect, never to be shown."""
        return None if self.fleet.redis_url is None else self.fleet.redis_url.get_secret_value()

    @property
    def rq_url(self) -> str | None:
        return None if self.fleet.rq_url is None else self.fleet.rq_url.get_secret_value()

    def shown(self, name: str) -> str:
        """Return a value without what is secret in it."""
        value = getattr(self.fleet, name)
        match value:
            case None | ():
                return ""
            case SecretStr() if name == "key":
                keys = value.get_secret_value().replace(",", " ").split()
                return ", ".join(key.partition(":")[0] for key in keys)
            case SecretStr():
                return str(parse(value.get_secret_value()))
            case tuple():
                return ",".join(value)
            case float():
                return f"{value:g}s"
            case _:
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
            value = getattr(self.fleet, name)
            if value is None:
                environment.pop(variable(name), None)
            else:
                text = value.get_secret_value() if isinstance(value, SecretStr) else value
                environment[variable(name)] = text


def resolve(given: Given) -> Resolved:
    """Check everything that was said."""
    try:
        return Resolved(FleetSettings(**given.values), given.origins, given.file)
    except ValidationError as error:
        raise _refused(error, given) from None
    except (BadAddress, CheckpointError, GraphError) as error:  # what our own checks have to say
        raise BadSetting(error.message, hint=error.hint) from None


def _refused(error: ValidationError, given: Given) -> BadSetting:
    """Return the error of the first mistake, with its place."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    origin = given.origins.get(name, DEFAULT)
    value, allowed = given.values.get(name), FleetSettings.model_fields[name].description
    own = first.get("ctx", {}).get("error")
    if isinstance(own, (BadAddress, CheckpointError, GraphError)):
        message, hint = f"{origin.of(name)} cannot be used: {own.message}", own.hint
    else:
        secret = name in ("redis_url", "rq_url", "key")
        said = "is no text" if secret else f"is {masked(str(value))!r}"
        message, hint = f"{origin.of(name)} {said}.", f"Allowed: {allowed}."
    return BadSetting(message, hint=hint, setting=name, where=origin.where)

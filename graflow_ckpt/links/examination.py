"""How a server is set up, and what that means for what is kept there.

Not here: whether something is refused because of it; each caller decides for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from graflow_ckpt.links.complaints import redis, translated
from graflow_ckpt.links.redis import RedisLink

_NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `error`: what is kept there can be lost or cannot be changed."""

    level: Literal["ok", "warning", "error"]
    what: str
    hint: str = ""


def examine(link: RedisLink) -> list[Finding]:
    """Version, role, memory and durability of the server."""
    with translated(link.address):
        try:
            info = dict(link.client.info())
        except redis.ResponseError as error:
            return [Finding("warning", f"{link.address} does not say how it is set up: {error}.")]
        config = _config(link.client)
    return [*_identity(link, info), *_memory(info), *_durability(info, config)]


def _config(client: redis.Redis) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in client.config_get("append*").items()}
    except redis.ResponseError:
        return {}  # hosted servers commonly do not let anybody look


def _identity(link: RedisLink, info: dict[str, Any]) -> Iterator[Finding]:
    name = info.get("server_name", "redis")
    version = info.get("valkey_version") or info.get("redis_version", "?")
    yield Finding("ok", f"{link.address} is {name} {version}")
    if info.get("role") in ("slave", "replica"):
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Finding(
            "error",
            f"It is a replica of {master} and takes no writes.",
            "Name the master, or the sentinels (redis+sentinel://host:26379/service).",
        )


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory") or 0)
    used = int(info.get("used_memory") or 0)
    if policy == "noeviction":
        yield Finding("ok", "It refuses writes when its memory is full, and drops nothing (noeviction).")
    else:
        yield Finding(
            "error" if limit and policy.startswith("allkeys") else "warning",
            f"When its memory is full it drops keys, of sessions too (maxmemory-policy {policy}).",
            "CONFIG SET maxmemory-policy noeviction, or use a server of its own for sessions.",
        )
    if limit and used > limit * _NEARLY_FULL:
        yield Finding(
            "warning",
            f"It uses {used / 2**20:.0f} of the {limit / 2**20:.0f} MB that it may use (maxmemory).",
            "Raise maxmemory, or remove what is not needed.",
        )


def _durability(info: dict[str, Any], config: dict[str, str]) -> Iterator[Finding]:
    if not int(info.get("aof_enabled") or 0):
        yield Finding(
            "warning",
            "It writes no log of its changes (appendonly no): when it ends, what is newer than its last "
            "snapshot is lost.",
            "CONFIG SET appendonly yes, and the same in its configuration file.",
        )
        return
    policy = config.get("appendfsync", "everysec")
    if policy == "always":
        yield Finding("ok", "Each change is on its disk before it is confirmed (appendfsync always).")
    elif policy == "no":
        yield Finding(
            "warning",
            "Its log is written to the disk whenever the system likes (appendfsync no).",
            "CONFIG SET appendfsync everysec, or always.",
        )
    else:
        yield Finding("ok", "Its log is on its disk within a second (appendfsync everysec).")
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Finding("error", "It could not write its log the last time.", "Look at its disk and its log.")

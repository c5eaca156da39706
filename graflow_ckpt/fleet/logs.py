"""Logs of a pool: one line per fact, as text or as JSON, on stderr.

Promise: the keys of a fact are always the same (session, task, step, attempt, token, worker), and no
line has a password in it, whatever a library puts into its errors. RQ says what it warns of and
nothing else. Not here: what tasks print.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

from graflow_ckpt.links.addresses import parse

KEYS = ("session", "task", "step", "attempt", "token", "worker")
Manner = Literal["text", "json"]

_QUIET = ("rq", "rq.worker", "rq.job", "rq.queue", "rq.scheduler", "rq.registry")


class Named(logging.Filter):
    """Every line says which process of the pool it is from."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def filter(self, record: logging.LogRecord) -> bool:
        if record.__dict__.get("worker") is None:
            record.worker = self._name
        return True


class Lines(logging.Formatter):
    """A record as one line; secrets are starred out."""

    def __init__(self, manner: Manner, secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._json = manner == "json"
        self._secrets = [secret for secret in secrets if secret]

    def format(self, record: logging.LogRecord) -> str:
        line = self._as_json(record) if self._json else self._as_text(record)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line

    def _as_json(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
            "pid": record.process,
        }
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)

    def _as_text(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        worker = facts.pop("worker", "")
        line = f"{_time(record)} {record.levelname:<7} {worker}: {record.getMessage()}"
        words = set(re.split(r"[^\w-]+", record.getMessage()))
        said = [f"{key}={value}" for key, value in facts.items() if str(value) not in words]
        line = "  ".join([line.replace("\n", "\n  "), " ".join(said)]).rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    found = {key: record.__dict__.get(key) for key in KEYS}
    return {key: value for key, value in found.items() if value is not None}


def begin(manner: Manner, name: str, secrets: Sequence[str] = ()) -> None:
    """From now on this process logs like that. Called again by each child, under its own name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(manner, secrets))
    handler.addFilter(Named(name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for logger in _QUIET:
        logging.getLogger(logger).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def secrets_of(*urls: str | None) -> list[str]:
    """The passwords that addresses hold, as they are written and as they are meant."""
    found = []
    for url in filter(None, urls):
        for name, secret in parse(url).secrets.items():
            if name.endswith("password"):
                found += [secret, quote(secret, safe="")]
    return found

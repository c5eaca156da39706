"""Redaction: what looks like a secret in metadata or arguments is in the sealed values alone, never shown.

Names decide. Under `tokens` and `token_id` a text is a secret and a number is not: `BestOf` reads numbers.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "[REDACTED]"
_SECRET = re.compile(
    r"(^|_)pass(phrase)?$|password|passwd|passphrase|secret|(api|private|access|secret)_?key|credential|"
    r"authorization|(^|_)(auth|pin|pwd|dsn|cookies?)$|connection_?string",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"tokens?(_?ids?)?$", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)")


def redacted(value: Any, name: str = "") -> Any:  # Any: JSON
    """Return the value with secrets hidden: by the names of keys, and passwords in URLs."""
    if name and value not in (None, "", True, False) and _is_secret(name, value):
        return HIDDEN
    if isinstance(value, dict):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item) for item in value]
    if isinstance(value, str):
        return _IN_URL.sub(rf"\1:{HIDDEN}", value)
    return value


def _is_secret(name: str, value: Any = "") -> bool:
    flat = name.replace("-", "_").replace(".", "_").replace(" ", "_")
    return bool(_SECRET.search(flat) or (not isinstance(value, int | float) and _TOKEN.search(flat)))


def redacted_argv(argv: list[str]) -> list[str]:
    """Return the arguments as they were typed, without what follows a name like --password."""
    shown: list[str] = []
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = _is_secret(name.lstrip("-"))
        if hide and not word.startswith("-"):
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(redacted(word))
        hide = secret and not equals and word.startswith("-")
    return shown

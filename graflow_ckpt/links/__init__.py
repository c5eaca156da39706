"""Links: connections to servers, with what goes wrong said in our own words.

Promise: nothing is sent twice unless the caller asks for it, no socket is shared with a forked
child, and no message, repr or log holds a password.
Not here: sessions, checkpoints, or anything else that a server is used for.
"""

from __future__ import annotations

from graflow_ckpt.core.errors import PackageMissing

try:  # the one door: every module of this package comes through it
    import redis
except ModuleNotFoundError as missing:
    raise PackageMissing(
        f"A Redis server cannot be used: the package {missing.name} is not installed.",
        hint="Install it with: pip install 'graflow-ckpt[fleet]'.",
        extra="fleet",
    ) from missing

del redis

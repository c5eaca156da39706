"""Pickles that run code when they are opened: each way that the format has, once.

All of them call the canary and do no harm, should one ever be opened.
"""

from __future__ import annotations

import pickle
from typing import Any

from tests.attacks import canary

_HOME = canary.__name__.encode()


class _Reduced:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def _text(word: bytes) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word  # SHORT_BINUNICODE


_CANARY = _text(_HOME) + _text(b"sing") + b"\x93"
_BIRD = _text(_HOME) + _text(b"Bird") + b"\x93"
_PROGRAM = f"__import__('importlib').import_module({canary.__name__!r}).sing('a program')"

GADGETS: dict[str, bytes] = {
    "reduce": pickle.dumps(_Reduced(canary.sing, ("reduced",)), 5),
    "eval": pickle.dumps(_Reduced(eval, (_PROGRAM,)), 5),
    "exec": pickle.dumps(_Reduced(exec, (_PROGRAM,)), 5),
    "items": pickle.dumps(_Reduced(list, (), None, iter([_Reduced(canary.sing, ("an item",))])), 5),
    "global": b"c" + _HOME + b"\nsing\n(tR.",
    "stack global": b"\x80\x04" + _CANARY + b")R.",
    "instance": b"(i" + _HOME + b"\nBird\n.",
    "object": b"(c" + _HOME + b"\nBird\no.",
    "new object": b"\x80\x04" + _BIRD + b")\x81" + b"}" + b"b.",
    "state": b"\x80\x04" + _text(b"object") + b"0" + _BIRD + b")\x81" + _text(b"x") + b"b.",
    "append": b"\x80\x04" + _BIRD + b")\x81" + _text(b"x") + b"a.",
    "set item": b"\x80\x04" + _BIRD + b")\x81" + _text(b"x") + _text(b"y") + b"s.",
    "before the end": b"\x80\x04"
    + _CANARY
    + b")R"
    + b"0",  # no STOP: it runs, and then there is no whole pickle
    "of our own": b"\x80\x04"
    + _text(b"graflow_ckpt._restore")
    + _text(b"of_main")
    + b"\x93"
    + _text(b"no such name")
    + b"C"
    + bytes([len(b"c" + _HOME + b"\nsing\n(tR.")])
    + (b"c" + _HOME + b"\nsing\n(tR.")
    + b"\x86R.",
}

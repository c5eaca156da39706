"""Arguments: what users give to constructors, checked where it is given.

    whole("EveryN", steps, least=1)         EveryN: '10' is not a whole number from 1 on.
    real("timeout", timeout, above=0)       timeout: nan is not a finite number above 0.
    kind("checkpoint", policy, Policy, "a policy such as EveryN(10)")

Numbers of numpy count as numbers; True and False do not. NaN and infinity are no amounts of anything.
"""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any

from graflow_ckpt.core.errors import GraphError

MOST = 10**11
"""Of steps, seconds and bytes: what a server counts in milliseconds fits into 64 bits."""


def whole(name: str, value: object, *, least: int | None = None) -> None:
    """Refuse what is not a whole number, or is too small."""
    if not isinstance(value, bool) and isinstance(value, Integral) and (least is None or int(value) >= least):
        return
    raise refused(name, value, f"a whole number{'' if least is None else f' from {least} on'}")


def counted(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is not a whole number that a server can hold."""
    whole(name, value, least=least)
    _check_most(name, value)


def lasting(name: str, value: object, *, least: float = 0) -> None:
    """Refuse what is not a number of seconds that a server can hold."""
    real(name, value, least=least)
    _check_most(name, value)


def _check_most(name: str, value: Any) -> None:  # of any kind of number
    if value > MOST:
        raise refused(name, value, f"at most {MOST}")


def real(name: str, value: object, *, least: float | None = None, above: float | None = None) -> None:
    """Refuse what is not a finite number, or is too small."""
    if not isinstance(value, bool) and isinstance(value, Real) and _is_finite(value):
        number = float(value)
        if (least is None or number >= least) and (above is None or number > above):
            return
    limit = f" from {least:g} on" if least is not None else f" above {above:g}" if above is not None else ""
    raise refused(name, value, f"a finite number{limit}")


def _is_finite(value: Real) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise refused(name, value, "True or False")


def text(name: str, value: object) -> str:
    """Return a text as Python's own; refuse what is none, or is empty."""
    if not isinstance(value, str) or not value:
        raise refused(name, value, "a text that is not empty")
    return str.__str__(value)


def kind(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Refuse what is not of one of these classes."""
    if not isinstance(value, kinds):
        raise refused(name, value, expected)


def no_name(name: object) -> TypeError:
    """Return the error for what cannot be the name of a value."""
    return TypeError(f"A channel name is a string, not {type(name).__name__}.")


def own(value: Any) -> Any:
    """Return a number of another library as Python's own, which a document can hold."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def settle(holder: object, *names: str) -> None:
    """Put Python's own numbers into these fields, in the place of those of other libraries."""
    for name in names:
        object.__setattr__(holder, name, own(getattr(holder, name)))


def refused(name: str, value: object, expected: str) -> GraphError:
    """Return the error for a value that cannot be used."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return GraphError(f"{name}: {shown} is not {expected}.", setting=name)

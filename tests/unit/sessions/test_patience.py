"""Patience: questions are asked again while the server is away, and for no longer than was said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from graflow_ckpt.core.errors import NoSession, ServerGone
from graflow_ckpt.sessions.redis import patiently


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def ask() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return ask


@pytest.mark.parametrize(
    "error", [ServerGone("away"), redis.ConnectionError("away"), redis.BusyLoadingError()]
)
def test_a_server_that_is_away_is_asked_again(error: Exception) -> None:
    assert patiently(failing(error, error), "redis://there", "s", 5.0) == "answer"


def test_after_its_time_it_is_gone() -> None:
    def ask() -> str:
        raise redis.ConnectionError("away")

    with pytest.raises(ServerGone, match="redis://there"):
        patiently(ask, "redis://there", "s", 0.05)


def test_what_is_no_absence_is_not_asked_again() -> None:
    ask = failing(NoSession("none"), NoSession("none"))

    with pytest.raises(NoSession):
        patiently(ask, "redis://there", "s", 5.0)
    with pytest.raises(NoSession):  # it was asked once
        patiently(ask, "redis://there", "s", 5.0)
    assert ask() == "answer"

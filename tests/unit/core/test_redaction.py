"""Secrets in metadata and arguments are not shown."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.redaction import HIDDEN, redacted, redacted_argv

NAMES = """password db_password PASSWD secret client-secret token access_token accessToken api_key apiKey
X.Api-Key tokens token_id tokenIds Authorization credentials session_cookie pass private-key"""


@pytest.mark.parametrize("name", NAMES.split())
def test_values_of_keys_that_name_secrets_are_hidden(name: str) -> None:
    assert redacted({name: "hunter2"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["epoch", "loss", "passed", "compass", "author", "spinner", "keyboard", "path", "tokenizer"],
)
def test_other_values_are_shown(name: str) -> None:
    assert redacted({name: "visible"}) == {name: "visible"}


def test_secrets_deep_inside_and_in_urls_are_hidden() -> None:
    found = redacted({"db": [{"password": ["a", "b"]}, "postgres://me:hunter2@host/x"], "n": 1})

    assert found == {"db": [{"password": HIDDEN}, f"postgres://me:{HIDDEN}@host/x"], "n": 1}


def test_an_empty_secret_is_seen_to_be_empty() -> None:
    assert redacted({"token": None, "password": ""}) == {"token": None, "password": ""}


def test_arguments_after_the_name_of_a_secret_are_hidden() -> None:
    argv = [
        "train.py",
        "--password",
        "hunter2",
        "--token=abc",
        "--epochs",
        "3",
        "--api-key",
        "--verbose",
        "x",
    ]

    assert redacted_argv(argv) == [
        "train.py", "--password", HIDDEN, f"--token={HIDDEN}", "--epochs", "3", "--api-key", "--verbose", "x",
    ]  # fmt: skip


def test_a_number_of_tokens_is_no_secret() -> None:
    counts = {"tokens": 7, "token_ids": 7.5, "token": 7}

    assert redacted(counts) == counts
    assert redacted({"pin": 1234}) == {"pin": HIDDEN}

"""Names of a Postgres store: what they lead to, and what is never shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.stores import open_store_of, store_of
from graflow_ckpt.stores.names import path_of
from graflow_ckpt.stores.postgres_names import divided, folder_of, parse

SECRET = "hun%2Fter2"


@pytest.mark.parametrize(
    ("where", "folder"),
    [
        ("postgresql://h/d", "postgresql://h:5432/d"),
        ("POSTGRES://u:p@h:1/d", "postgresql://h:1/d"),
        ("postgresql://a,b:7/d?sslmode=require", "postgresql://a:5432,b:7/d"),
        ("postgresql://[::1]:9/d", "postgresql://[::1]:9/d"),
        ("postgresql:///d", "postgresql://localhost:5432/d"),
        ("postgresql:///d?host=/run/pg&port=9", "postgresql://%2Frun%2Fpg:9/d"),
        ("postgresql://%2Frun%2Fpg:9/d", "postgresql://%2Frun%2Fpg:9/d"),
        ("postgresql://h/a%20b", "postgresql://h:5432/a%20b"),
    ],
)
def test_a_store_has_one_name_without_who_asks(where: str, folder: str) -> None:
    assert folder_of(where) == folder
    assert folder_of(folder) == folder


def test_libpq_is_told_all_that_the_address_says() -> None:
    address = parse(f"postgresql://me%40x:{SECRET}@a,[::1]:7/d%20b?sslmode=require")

    assert address.arguments() == {
        "host": "a,::1",
        "port": "5432,7",
        "dbname": "d b",
        "user": "me@x",
        "password": "hun/ter2",
        "sslmode": "require",
    }


def test_a_socket_is_told_as_a_folder() -> None:
    assert parse("postgresql:///d?host=/run/pg").arguments()["host"] == "/run/pg"


def test_what_is_shown_holds_no_secret() -> None:
    for where in (f"postgresql://me:{SECRET}@h/d", f"postgresql://h/d?user=me&password={SECRET}"):
        address = parse(where)

        assert address.arguments()["password"] == "hun/ter2"
        for text in (str(address), repr(address)):
            assert "hun" not in text
            assert "me" not in text


@pytest.mark.parametrize(
    "where",
    [
        f"postgresql://me:{SECRET}@h",
        f"postgresql://me:{SECRET}@h/",
        f"postgresql://me:{SECRET}@h:x/d",
        f"postgresql://me:{SECRET}@h:99999/d",
        f"postgresql://me:{SECRET}@h/d#f",
        f"postgresql://me:a@{SECRET}@h/d",
        f"postgresql://me:a/{SECRET}@h/d",
        f"postgresql://me:a?{SECRET}@h/d",
        f"postgresql://me:{SECRET}@h/d/a/b",
        f"mysql://me:{SECRET}@h/d",
    ],
)
def test_what_cannot_be_read_is_refused_without_being_shown(where: str) -> None:
    with pytest.raises(CheckpointError if "/a/b" in where else BadAddress) as refused:
        parse(divided(where)[0])

    assert "hun" not in f"{refused.value} {refused.value.ids}"


def test_a_path_is_a_store_and_a_name() -> None:
    own = "session_s_step_1_1700000000-1"

    assert divided(f"postgresql://u:{SECRET}@h/d/best?sslmode=disable") == (
        f"postgresql://u:{SECRET}@h/d?sslmode=disable",
        "best",
    )
    assert divided("postgresql://h/d/best.state.json")[1] == "best"
    assert divided("postgresql://h/d")[1] == ""
    assert path_of("postgresql://h:1/d", own) == f"postgresql://h:1/d/{own}.pkl"
    assert path_of("postgresql://h:1/d", "best") == "postgresql://h:1/d/best"
    assert store_of("postgresql://h:1/d/best") == "postgresql://h:1/d"
    assert (
        open_store_of("postgresql://h:1/d/best").takes("postgres://h:1/d/best") == "postgresql://h:1/d/best"
    )


def test_credentials_are_those_that_have_opened_it_or_those_of_the_environment() -> None:
    text = parse("postgresql://remembered/d")
    environment = {"GRAFLOW_CKPT_STORE": f"postgresql://env:{SECRET}@remembered/d/name?sslmode=require"}
    assert text.with_credentials({}).secrets == {}
    assert text.with_credentials(environment).arguments()["sslmode"] == "require"
    assert text.with_credentials(environment).secrets["user"] == "env"
    assert parse("postgresql://other/d").with_credentials(environment).secrets == {}

    parse(f"postgresql://me:{SECRET}@remembered/d?sslmode=disable").remember()

    assert text.with_credentials(environment).secrets == {"user": "me", "password": "hun/ter2"}
    assert text.with_credentials(environment).options == {"sslmode": "disable"}
    own = parse("postgresql://own@remembered/d").with_credentials(environment)
    assert own.secrets == {"user": "own"}


def test_a_store_without_its_package_names_the_extra() -> None:
    program = """
import sys
sys.modules["psycopg"] = None
from graflow_ckpt.stores import open_store, store_of
print(store_of("postgresql://h/d/best"))
try:
    open_store("postgresql://h/d")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "graflow-ckpt[postgres]" in done.stdout

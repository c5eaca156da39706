"""Real object stores for tests, on free ports and without a disk: the S3 server of the package moto; and
Azurite, for Azure, where AZURITE names it (`make test-azure` installs it with npm and sets that). No server
of Google's can be installed: with AS_GOOGLE the S3 server speaks that protocol (`make test-google`).

Several requests are answered in turns, so that conditions are atomic, as they are at the real services.
`without="conditions"`: one that ignores If-Match and If-None-Match; `without="support"`: one that answers
them with 501, as some do; `without="rights"`: one that lets nobody do anything. `stop`, `freeze` and `thaw`
are those of every server of the tests; what was stored ends with the process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import io
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from tests.servers import Server

BUCKET = "bucket"
_ACCOUNT = "devstoreaccount1"  # that of every emulator, with the key that its documentation publishes
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "AWS_REGION": "us-east-1",
    "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
    "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
}


class ObjectServer(Server):
    """An S3 server with one bucket."""

    scheme = "s3"

    def __init__(self, *, without: str = "") -> None:
        super().__init__(binary=sys.executable)
        self.without = without
        self._port = 0

    @property
    def url(self) -> str:
        """The address of an empty store: every time another."""
        return self.at(uuid.uuid4().hex)

    def at(self, prefix: str, port: int = 0) -> str:
        return f"{self.scheme}://{BUCKET}/{prefix}?endpoint=http://{self.host}:{port or self.port}"

    def request(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers or {})
            reply = connection.getresponse()
            if reply.headers["X-Server"] != str(self.pid):
                raise ConnectionRefusedError("another server")
            return reply.status, reply.read()
        finally:
            connection.close()

    def _launch(self, port: int) -> Any:
        self._port = port
        return super()._launch(port)

    def _command(self) -> list[str]:
        return [self.binary, __file__, str(self._port), self.without]

    def _ready(self) -> bool:
        return self.request("PUT", f"/{BUCKET}")[0] in (200, 403)


class AzureServer(ObjectServer):
    """Azurite with one container."""

    scheme = "az"

    def at(self, prefix: str, port: int = 0) -> str:
        return f"{super().at(prefix, port)}/{_ACCOUNT}"

    def _command(self) -> list[str]:
        place = ["--blobHost", self.host, "--blobPort", str(self._port), "--inMemoryPersistence"]
        return [os.environ["AZURITE"], *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

    def _ready(self) -> bool:
        """Makes the container. A request for that is signed, and no client of ours makes any."""
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        stated = f"x-ms-date:{date}\nx-ms-version:2021-08-06"
        signed = f"PUT{chr(10) * 12}{stated}\n/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
        mac = hmac.digest(base64.b64decode(_ACCOUNT_KEY), signed.encode(), hashlib.sha256)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        headers = dict(line.split(":", 1) for line in stated.split("\n"))
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
        try:
            connection.request("PUT", f"/{_ACCOUNT}/{BUCKET}?restype=container", headers=headers)
            return connection.getresponse().status in (201, 409)
        finally:
            connection.close()


class GoogleServer(ObjectServer):
    """The same server behind what Google's protocol has instead: generations, and conditions on them.

    It is not Google's, nor an emulator of it: it shows that the client and this package mean the same.
    """

    scheme = "gs"

    def at(self, prefix: str, port: int = 0) -> str:
        """The client is told by GOOGLE_SERVICE_ACCOUNT_KEY where its server is."""
        account = {"gcs_base_url": f"http://{self.host}:{port or self.port}", "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")  # type: ignore[arg-type]
        os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"] = json.dumps(account)
        return f"{self.scheme}://{BUCKET}/{prefix}?skip_signature=true"

    def _command(self) -> list[str]:
        return [self.binary, __file__, str(self._port), "google"]


def object_server() -> ObjectServer:
    """The one that this run of the tests is about."""
    if "AZURITE" in os.environ:
        return AzureServer()
    return GoogleServer() if "AS_GOOGLE" in os.environ else ObjectServer()


_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


class _AsGoogle:
    """Requests with conditions on generations, which are numbered here; all else is left to the server."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._generations: dict[str, int] = {}
        self._last = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        key, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        environ["HTTP_AUTHORIZATION"] = _SIGNED  # it is looked at, and not verified
        asked = environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
        if asked is not None and int(asked) != self._generations.get(key, 0):
            start("412 Precondition Failed", [("Content-Length", "0")])
            return []
        if method == "PUT":
            self._last += 1
            self._generations[key] = self._last
        elif method == "DELETE":
            self._generations.pop(key, None)

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            generation = ("x-goog-generation", str(self._generations.get(key, 0)))
            return start(status, [*headers, generation], *rest)

        reply: Iterable[bytes] = self._app(environ, started)
        return reply


def _serve(port: int, without: str) -> None:
    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as the real services keep them

        def log(self, *args: object, **options: object) -> None: ...

    app, turn = create_backend_app("s3"), threading.Lock()
    if without == "google":
        app, without = _AsGoogle(app), ""

    def one_at_a_time(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, ("X-Server", str(os.getpid()))], *rest)

        size = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        if without == "rights":
            started("403 Forbidden", [("Content-Length", "0")])
            return []
        conditions = [name for name in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH") if name in environ]
        if without and conditions and environ["REQUEST_METHOD"] == "PUT":
            if without == "support":
                started("501 Not Implemented", [("Content-Length", "0")])
                return []
            for name in conditions:
                del environ[name]
        with turn:
            reply: Iterable[bytes] = app(environ, started)
            return [b"".join(reply)]

    make_server("127.0.0.1", port, one_at_a_time, threaded=True, request_handler=Quiet).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])

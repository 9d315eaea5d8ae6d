"""A few verbs of S3 on localhost, so that `s3://` is tested over real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Handler(BaseHTTPRequestHandler):
    """PUT, GET (with ranges) and HEAD of whole objects, kept in a dictionary."""

    protocol_version = "HTTP/1.1"

    @property
    def key(self) -> str:
        """The object's path, bucket included."""
        return unquote(urlsplit(self.path).path)

    def do_PUT(self) -> None:
        """Store an object."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[self.key] = data
        self._answer(200, b"", {"ETag": f'"{_etag(data)}"'})

    def do_GET(self) -> None:
        """Send an object or a range of it."""
        data = self.server.objects.get(self.key)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        headers = {"ETag": f'"{_etag(data)}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, data, headers)
            return
        start, end = map(int, wanted.removeprefix("bytes=").split("-"))
        part = data[start : end + 1]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        self._answer(206, part, headers)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


def _etag(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def s3_server() -> Iterator[ThreadingHTTPServer]:
    """Serve on a free port of localhost; `objects` maps paths to bytes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.objects = {}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

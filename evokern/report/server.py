"""The report on this machine's own address while a search runs: read-only, behind a token, for this machine alone."""

from __future__ import annotations

import hmac
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from evokern.errors import UsageError
from evokern.report.live import FollowedStudy

ADDRESS = "127.0.0.1"
"""The loopback address: no other machine reaches it."""
REQUEST_S = 10.0
"""How long a connection may take over a request, seconds."""
MOST_PORT = 65535
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the token stands in the address
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class ReportServer:
    """Serves a followed study. It answers GET and HEAD, and nothing that it answers writes or names a file."""

    def __init__(self, study: FollowedStudy, port: int = 0) -> None:
        """Take the port.

        Args:
            study: what is shown.
            port: where; 0 takes a free one.

        Raises:
            UsageError: there is no such port, or it is in use.
        """
        if not 0 <= port <= MOST_PORT:
            raise UsageError(f"there is no port {port}; --serve takes 1 to {MOST_PORT}, or none for a free one")
        self._study = study
        self._token = secrets.token_urlsafe(18)
        self._ended = False
        try:
            self._server = _Server((ADDRESS, port), self._handler())
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}; name another one, or `--serve` alone for a free one"
            ) from error

    @property
    def address(self) -> str:
        """The page's address, with its token."""
        return f"http://{ADDRESS}:{self._server.server_address[1]}/{self._token}/"

    def serve(self) -> None:
        """Answer requests until `shut_down`."""
        self._study.start()
        while not self._ended:
            self._server.handle_request()

    def close(self) -> None:
        """End it."""
        self._server.server_close()
        self._study.stop()

    def shut_down(self) -> None:
        """Let `serve` return within half a second; callable from another thread, and from a signal's handler."""
        self._ended = True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        study, token = self._study, self._token

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = REQUEST_S
            server_version, sys_version = "evokern", ""

            def do_GET(self) -> None:
                """Answer."""
                self._answer()

            def do_HEAD(self) -> None:
                """Answer without the content."""
                self._answer()

            def _answer(self) -> None:
                # A page elsewhere can have a name of its own resolve to this address: the browser then says that name.
                port = self.server.server_address[1]  # type: ignore[index]
                names = {f"{name}:{port!s}" for name in (ADDRESS, "localhost")}
                if self.headers.get("Host", "") not in names:
                    return self._send(HTTPStatus.MISDIRECTED_REQUEST, b"", "text/plain")
                asked = urlsplit(self.path)
                first, slash, rest = asked.path.removeprefix("/").partition("/")
                if not slash or not hmac.compare_digest(first.encode(), token.encode()):
                    return self._send(HTTPStatus.NOT_FOUND, b"no such page: take the address that evokern printed\n")
                given = {name: values[-1] for name, values in parse_qs(asked.query).items()}
                content, kind = _content(study, rest, given)
                if content is None:
                    return self._send(HTTPStatus.NOT_FOUND, b"no such part of the page\n")
                return self._send(HTTPStatus.OK, content, kind)

            def _send(self, status: HTTPStatus, content: bytes, kind: str = "text/plain") -> None:
                self.send_response(status)
                for name, value in _HEADERS.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: a request a second is no news."""

        return Handler


def _content(study: FollowedStudy, part: str, given: dict[str, str]) -> tuple[bytes | None, str]:
    """Return a part of the page and its type; None where there is no such part. A part's name is never a path."""
    match part:
        case "":
            return study.page(), "text/html"
        case "parts":
            return study.parts(), "text/html"
        case "news":
            return study.news(_number(given.get("since")), _number(given.get("texts"))), "application/json"
        case "trial":
            return study.trial(_number(given.get("number"))), "application/json"
    return None, ""


def _number(text: str | None) -> int:
    """Return a whole number that is not negative; 0 for every other text."""
    return int(text) if text and len(text) < 10 and text.isascii() and text.isdigit() else 0


class _Server(ThreadingHTTPServer):
    timeout = 0.5  # of one wait for a request, seconds
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error of ours."""

"""Local read-only web server for the live report, reachable only from this machine and only with a token."""

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
"""Loopback address, unreachable from other machines."""
REQUEST_S = 10.0
"""Timeout of a connection, in seconds."""
MOST_PORT = 65535
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class ReportServer:
    """HTTP server for a live study page. It handles only GET and HEAD and never accesses files by name."""

    def __init__(self, study: FollowedStudy, port: int = 0) -> None:
        """Bind the port.

        Args:
            study: Study to show.
            port: Port to use; 0 selects a free one.

        Raises:
            UsageError: The port number is invalid or the port is in use.
        """
        if not 0 <= port <= MOST_PORT:
            raise UsageError(
                f"invalid port {port}; use `--serve PORT` with a port from 1 to {MOST_PORT}, or `--serve` alone for a "
                "free one"
            )
        self._study = study
        self._token = secrets.token_urlsafe(18)
        self._ended = False
        try:
            self._server = _Server((ADDRESS, port), self._handler())
        except OSError as error:
            raise UsageError(
                f"cannot use port {port}: {error.strerror}; choose another port, or use `--serve` alone for a free one"
            ) from error

    @property
    def address(self) -> str:
        """Address of the page, including the token."""
        return f"http://{ADDRESS}:{self._server.server_address[1]}/{self._token}/"

    def serve(self) -> None:
        """Handle requests until `shut_down` is called."""
        self._study.start()
        while not self._ended:
            self._server.handle_request()

    def close(self) -> None:
        """Close the server and stop following the study."""
        self._server.server_close()
        self._study.stop()

    def shut_down(self) -> None:
        """Make `serve` return within half a second; may be called from another thread or a signal handler."""
        self._ended = True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        study, token = self._study, self._token

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = REQUEST_S
            server_version, sys_version = "evokern", ""

            def do_GET(self) -> None:
                """Respond with a part of the page."""
                self._answer()

            def do_HEAD(self) -> None:
                """Respond with headers only."""
                self._answer()

            def _answer(self) -> None:
                # Reject foreign host names: another page could resolve its own name to this address (DNS rebinding).
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
                """Log nothing, because pages send a request every second."""

        return Handler


def _content(study: FollowedStudy, part: str, given: dict[str, str]) -> tuple[bytes | None, str]:
    """Return a part of the page and its content type, or None for an unknown part. Names are never file paths."""
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
    """Return a non-negative integer, or 0 for any other text."""
    return int(text) if text and len(text) < 10 and text.isascii() and text.isdigit() else 0


class _Server(ThreadingHTTPServer):
    timeout = 0.5  # maximum wait for a request, in seconds
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects during a response."""

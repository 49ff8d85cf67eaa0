"""A headless Chromium, driven over a pipe by its DevTools protocol: no driver and no further package.

https://chromedevtools.github.io/devtools-protocol/ lists the methods. Messages are JSON that ends with a NUL byte, read
by Chromium from descriptor 3 and written to 4 (`--remote-debugging-pipe`).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Commands that may start it; `EVOKERN_CHROMIUM` names another."""
ANSWER_S = 60.0
"""Seconds in which every answer must come: the first one waits for the browser to start."""

UNFOLD = "document.querySelectorAll('details').forEach(one => { one.open = true; }); " + (
    "new Promise(done => setTimeout(done, 250))"
)
"""Script: opens everything that is folded, and waits until it is drawn."""
FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
"""Script: waits until what was asked for is drawn."""
MARK_OF = """
(() => {
  const path = document.querySelector('[data-view=VIEW] .plot .mark.measured, [data-view=VIEW] .plot .parallel.quick');
  const [, x, y] = path.getAttribute('d').match(/^M([\\d.]+) ([\\d.]+)/).map(Number);
  const frame = path.ownerSVGElement.getBoundingClientRect();
  return { x: frame.left + x + 1, y: frame.top + y };
})()
"""
"""Script: a place of the window where the plot of VIEW has a mark."""


def find() -> str | None:
    """Return the command of a Chromium that is installed here, or None."""
    named = os.environ.get("EVOKERN_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One Chromium with one page."""

    def __init__(self, command: str, profile: Path) -> None:
        """Start it.

        Args:
            command: what starts it.
            profile: an empty folder for what it writes.
        """
        there, back = os.pipe(), os.pipe()
        # Its own descriptors must not be ours to close: they are moved out of the way of 3 and 4 first.
        stdin, stdout = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (there[0], back[1]))
        os.close(there[0])
        os.close(back[1])
        self._write, self._read = there[1], back[0]
        log = os.open(profile / "log", os.O_WRONLY | os.O_CREAT)
        actions = [(os.POSIX_SPAWN_DUP2, *pair) for pair in ((stdin, 3), (stdout, 4), (log, 1), (log, 2))]
        arguments = [
            command,
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"),
            # A container often has neither user namespaces for the sandbox nor a large /dev/shm.
            *("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
            # What the browser itself would fetch is no matter of the page.
            *("--disable-background-networking", "--disable-component-update", "--disable-sync", "about:blank"),
        ]
        self._pid = os.posix_spawnp(command, arguments, os.environ, file_actions=actions, setpgroup=0)
        for descriptor in (stdin, stdout, log):
            os.close(descriptor)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """Every event since the page was opened: method and params."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._read, 2**20) if ready else b""
            assert chunk, "the browser ended" if ready else f"the browser did not answer within {ANSWER_S:g} s"
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))

    def open(self, page: Path | str, width: int, *, dark: bool = False, scripts: bool = True) -> None:
        """Show a page in a window of so many CSS pixels by 900, and wait until it is there.

        Args:
            page: a file, or an address.
            width: CSS pixels.
            dark: whether the system wishes for dark pages.
            scripts: whether the page's own scripts run.
        """
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        # A page that differs from the last one in its fragment alone would not be loaded again.
        self.call("Page.navigate", url="about:blank")
        self._wait_for_load()
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._wait_for_load()

    def _wait_for_load(self) -> None:
        end = time.monotonic() + ANSWER_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(end))

    def run(self, script: str) -> Any:
        """Return the JSON value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key.

        Args:
            key: its name, `Tab`, `Enter` or `Escape`.
            code: its Windows virtual key code.
        """
        text = {"text": "\r"} if key == "Enter" else {}
        common: Mapping[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse at a place of the window, px."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wait_until(self, script: str, seconds: float = 10.0) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"not within {seconds:g} s: {script}"
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End it and what it started."""
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

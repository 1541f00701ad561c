"""A headless Chromium for tests of pages: driven by its own protocol over two pipes, without any other program."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

ANSWER_SECONDS: Final = 60.0
"""A browser that says nothing for so long has failed."""

_FLAGS: Final = (
    "--headless",
    # A container is the sandbox, and whoever runs tests as root gets no other.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-crash-reporter",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """The browser's path; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser with one page.

    Args:
        writing: Pipe to the browser.
        reading: Pipe from it.

    Attributes:
        complaints: Errors and warnings of the page since it was opened, each once.
        requests: What it has asked for, by its URL.
    """

    def __init__(self, writing: int, reading: int) -> None:
        self._writing = writing
        self._reading = reading
        self._unread = b""
        self._sent = 0
        self._session = ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, parameters: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 -- plain JSON
        """Call a method of the protocol, and wait for what it returns.

        Raises:
            AssertionError: It failed, or the browser does not answer.
        """
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": dict(parameters or {})}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(ANSWER_SECONDS)
            assert answer is not None, f"the browser does not answer {method}"
            if answer.get("id") == self._sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 -- plain JSON
        """The value of an expression in the page; of a promise what it is fulfilled with.

        Raises:
            AssertionError: It threw something.
        """
        found = self.ask("Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True})
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """Set the size of the window, its colours, and whether it is touched by fingers."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
        )
        self.ask("Emulation.setTouchEmulationEnabled", {"enabled": phone})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, page: Path) -> None:
        """Open a file, and wait until all of it is there."""
        self.complaints.clear()
        self.requests.clear()
        self.ask("Page.navigate", {"url": page.absolute().as_uri()})
        self.wait_for("document.readyState === 'complete'")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true.

        Raises:
            AssertionError: It never is.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}; {self.complaints}"
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.ask("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None where none comes."""
        while b"\0" not in self._unread:
            if not select.select([self._reading], [], [], seconds)[0]:
                return None
            chunk = os.read(self._reading, 1 << 16)
            if not chunk:
                return None
            self._unread += chunk
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._keep(message)
        return message

    def _keep(self, message: Mapping[str, Any]) -> None:
        """Keep what went wrong in the page, and what it asked the network for."""
        method, told = message.get("method"), message.get("params", {})
        complaint = ""
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            complaint = details.get("exception", {}).get("description", details["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
            complaint = " ".join(str(each.get("value")) for each in told["args"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            complaint = told["entry"]["text"]
        if complaint and complaint not in self.complaints:
            self.complaints.append(complaint)
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start a browser, and end it with all its processes.

    Args:
        profile: An empty folder for what it writes.
    """
    program = find_chromium()
    assert program is not None
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    try:
        process = _start(program, profile, to_browser, from_browser)
    except BaseException:
        for end in (from_us, to_us):
            os.close(end)
        raise
    finally:
        for end in (to_browser, from_browser):
            os.close(end)
    try:
        yield Browser(from_us, to_us)
    finally:
        os.close(from_us)
        os.close(to_us)
        # Its helpers are in its process group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(program: str, profile: Path, reading: int, writing: int) -> subprocess.Popen[bytes]:
    """The protocol's pipes are the browser's descriptors 3 and 4."""
    # A shell puts them there: in this process those numbers may be anybody's.
    script = f'exec "$@" 3<&{reading} 4>&{writing}'
    command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    return subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(reading, writing),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )

"""A headless Chromium for tests of pages, over the DevTools protocol and a pair of pipes.

https://chromedevtools.github.io/devtools-protocol/ has the methods; messages are JSON, each ended
by a null byte (``--remote-debugging-pipe``).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WHY_NOT: Final = "there is no chromium on PATH (Debian: apt-get install chromium)"
_WAIT_S: Final = 60.0
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_KEYS: Final = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Space": (32, " "),
    "End": (35, ""),
    "ArrowDown": (40, ""),
}
"""Name -> (code, what it types)."""


class Page:
    """One page of one browser, whose profile is in ``folder``; a context that ends it.

    ``said`` collects what the console says, errors of scripts and refusals of the content security
    policy; ``requests`` what the page asked for.
    """

    def __init__(self, folder: Path, *, width: int = 1200, height: int = 900) -> None:
        assert PROGRAM is not None, WHY_NOT
        self.said: list[str] = []
        self.requests: list[str] = []
        self._count, self._session, self._rest, self._scripts = 0, "", b"", True
        self._reached: set[tuple[str, str]] = set()
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [PROGRAM, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]

        def place() -> None:
            # the browser reads from 3 and writes to 4
            low, high = os.dup(to_read), os.dup(to_write)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            command,
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
                self.call(f"{domain}.enable")
            self.call("Page.setLifecycleEventsEnabled", enabled=True)
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all of its processes."""
        self._session = ""
        with contextlib.suppress(OSError, AssertionError, subprocess.TimeoutExpired):
            self.call("Browser.close")
            self._process.wait(60)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of a method; an AssertionError for an error."""
        answer = self._ask(method, parameters)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]  # type: ignore[no-any-return]

    def try_call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of a method; empty for an error."""
        return self._ask(method, parameters).get("result", {})  # type: ignore[no-any-return]

    def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                return answer
            self._note(answer)

    def open(self, path: Path, fragment: str = "") -> None:
        """Go to a file and wait until it has loaded."""
        # a change of the fragment alone would load nothing
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        address = path.resolve().as_uri() + fragment
        loader = self.call("Page.navigate", url=address)["loaderId"]
        while (loader, "load") not in self._reached:
            self._note(self._receive())
        if self._scripts:
            self.settle()

    def settle(self) -> None:
        """Wait for two frames, and for what the search waits for."""
        frames = "new Promise(done => setTimeout(() => requestAnimationFrame(() => "
        self.run(frames + "requestAnimationFrame(done)), 200))", is_promise=True)

    def run(self, expression: str, *, is_promise: bool = False) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=is_promise,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys by their names, "Tab" or "Enter"; other text is typed."""
        for key in keys:
            if key in _KEYS:
                self.key(key)
            else:
                self.call("Input.insertText", text=key)
        self.settle()

    def key(self, key: str) -> None:
        """Press one key by its name, and do not wait."""
        code, text = _KEYS[key]
        press = {"key": text if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **press, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **press)

    def resize(self, width: int, height: int) -> None:
        """Make the window this wide and high, in CSS pixels."""
        size = {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str, media: str = "") -> None:
        """Prefer "light" or "dark"; ``media`` "print" shows the page as it is printed."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def without_scripts(self) -> None:
        """From the next page on run no script of pages."""
        self._scripts = False
        self.call("Emulation.setScriptExecutionDisabled", value=True)

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        """Write a PNG of what is visible, or of the ``whole`` page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        """Write the page as it is printed, on its own paper."""
        answer = self.call("Page.printToPDF", preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + _WAIT_S  # allowed: a limit of what should never happen
        while b"\0" not in self._rest:
            left = max(until - time.monotonic(), 0)  # allowed: a limit of what should never happen
            ready, _, _ = select.select([self._read], [], [], left)
            assert ready, f"chromium said nothing for {_WAIT_S:g} s"
            data = os.read(self._read, 1 << 20)
            assert data, "chromium ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session:
            return
        method, parameters = event["method"], event.get("params", {})
        if method == "Page.lifecycleEvent":
            self._reached.add((parameters["loaderId"], parameters["name"]))
        elif method == "Log.entryAdded":
            self.said.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.said.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(parameters["exceptionDetails"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

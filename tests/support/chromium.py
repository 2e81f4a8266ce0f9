"""Headless Chromium, driven over a pipe with the DevTools protocol."""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Chromium:
    """A browser without a network that shows one page, as a context manager."""

    def __init__(self, program: str, profile: Path, page: Path) -> None:
        self.command = (
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}",
            "about:blank",
        )  # fmt: skip
        self.page, self.last, self.events = page, 0, list[dict[str, Any]]()
        self.session = ""

    def __enter__(self) -> Self:
        to_browser, from_browser = os.pipe(), os.pipe()
        passed = (to_browser[0], from_browser[1])
        redirected = f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}'  # the browser reads 3 and writes 4
        self.process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", *self.command],
            pass_fds=passed,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in passed:
            os.close(descriptor)
        self.write, self.read = os.fdopen(to_browser[1], "wb"), os.fdopen(from_browser[0], "rb")
        self.buffer = b""
        # the first target of the list may be a page of the browser's own, such as its address bar
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)  # keys need a focused page
        self.send(
            "Network.emulateNetworkConditions",
            offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip
        self.send("Page.navigate", url=self.page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.write.close()  # the browser ends when its pipe is closed
        self.read.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def send(self, method: str, **fields: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": fields}
        message |= {"sessionId": self.session} if self.session else {}
        self.write.write(json.dumps(message).encode() + b"\0")
        self.write.flush()
        while (answer := self.receive()).get("id") != self.last:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = self.read.read1()
            assert part, "the browser has ended"
            self.buffer += part
        first, self.buffer = self.buffer.split(b"\0", 1)
        return dict(json.loads(first))

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        found = self.send(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        look = f"const look = () => {condition} ? end() : setTimeout(look, 50)"
        self.evaluate(f"new Promise((end) => {{ {look}; look(); }})")

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files with an input element of the page."""
        found = self.send("Runtime.evaluate", expression=f"document.querySelector('{selector}')")
        self.send(
            "DOM.setFileInputFiles",
            files=[str(file.resolve()) for file in files],
            objectId=found["result"]["objectId"],
        )

    def complaints(self) -> list[str]:
        """Return errors and violations of the content security policy reported so far."""
        wanted = ("Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded")
        return [json.dumps(event) for event in self.events if event.get("method") in wanted]

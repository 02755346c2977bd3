"""`counterpoise serve` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

WAIT = 60  # seconds, for a busy machine


class Server:
    """A server on a port of its own; used in a `with` it always ends."""

    def __init__(self, run: Path, *options: str, shell: str = "") -> None:
        command = [sys.executable, "-m", "counterpoise.cli.main", "serve", str(run), "--port", "0", *options]
        if shell:  # what a shell does before it becomes the server
            command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: Queue[str] = Queue()
        Thread(target=self._listen, daemon=True).start()
        found = re.search(r"at (http://\S+) ", self.line())
        assert found is not None
        self.url = found[1].replace("0.0.0.0", "127.0.0.1")
        self.address = "127.0.0.1", int(self.url.rpartition(":")[2])
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(WAIT)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def line(self) -> str:
        """The next line of its log."""
        try:
            return self.lines.get(timeout=WAIT)
        except Empty:
            raise AssertionError("the server logged nothing") from None

    def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON) of a path."""
        return self._ask(urllib.request.Request(self.url + path, headers=self.headers))

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """(status, JSON) of a request with a body."""
        headers = self.headers | {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers))

    def _ask(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=WAIT) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def reload(self) -> str:
        """Ask the server to reload the run; the line that it logs."""
        self.process.send_signal(signal.SIGHUP)
        return self.line()

    def stop(self, how: signal.Signals) -> tuple[int, float]:
        """(exit code, seconds) of stopping."""
        started = time.perf_counter()
        self.process.send_signal(how)
        return self.process.wait(WAIT), time.perf_counter() - started

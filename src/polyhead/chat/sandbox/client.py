"""Send a rendering to the process of chat templates, which is started on first use and again if it ends."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from functools import cache
from typing import Any, NamedTuple

from polyhead.chat.sandbox.placeholders import Placeholders, choose_placeholders
from polyhead.core.errors import UserError

# what a template may use to write one conversation
CPU_SECONDS = 2.0
MAX_BYTES = 1 << 29  # of memory
MAX_TEMPLATE_CHARS = 1 << 18


class Rendering(NamedTuple):
    """A rendered text and the placeholders in it."""

    text: str
    placeholders: Placeholders


class TemplateError(UserError):
    """The template raised an error for this conversation."""


def render_template(template: str, values: dict[str, Any]) -> Rendering:
    """Render a Jinja template; UserError if it cannot be rendered, TemplateError if it raises an error."""
    if len(template) > MAX_TEMPLATE_CHARS:
        raise UserError(
            f"the chat template has {len(template):,} characters; the maximum is {MAX_TEMPLATE_CHARS:,}"
        )
    placeholders = choose_placeholders(template, values)
    request = {
        "template": template,
        "block": placeholders.block,
        "values": placeholders.protect(values),
        # by the length of the texts, of which JSON writes some characters as six
        "max_chars": (1 << 20) + 8 * len(json.dumps(values)),
        "cpu_seconds": CPU_SECONDS,
    }
    answer = _worker(os.getpid()).ask(request)
    if "raised" in answer:
        raise TemplateError(f"the chat template cannot write this conversation: {answer['raised']}")
    if "refused" in answer:
        raise UserError(f"the chat template is refused: {answer['refused']}")
    return Rendering(answer["text"], placeholders)


class _Worker:
    """The process; one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """Return the answer to a request; if the process ends, the answer gives the limits."""
        with self._lock:
            process = self._process or self._start()
            assert process.stdin and process.stdout
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # such as Ctrl-C: the answer to this request must not answer the next
                self.close()
                raise
            if line.endswith(b"\n"):
                answer: dict[str, str] = json.loads(line)
                return answer
            self.close()
            limits = f"{CPU_SECONDS:g} s of CPU time or {MAX_BYTES >> 20} MiB of memory"
            return {"refused": f"it needs more than {limits}"}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "polyhead.chat.sandbox.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C in a terminal does not reach it
        )
        return self._process


@cache
def _worker(pid: int) -> _Worker:
    """The worker of this process; a forked process has its own."""
    return _Worker()

"""The process that renders chat templates: one request per line of its input, one answer per line.

A template can compute without end, so the operating system bounds the time, the memory and the files of the
process.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from polyhead.chat.sandbox.client import MAX_BYTES
from polyhead.chat.sandbox.environment import RaisedByTemplateError, TemplateEnvironment
from polyhead.chat.sandbox.placeholders import Placeholders

_MAX_OPEN_FILES = 16
_ENVIRONMENT = TemplateEnvironment()
_compile = lru_cache(32)(_ENVIRONMENT.from_string)


def serve_requests() -> None:
    """Answer requests until the input ends."""
    with suppress(ValueError, OSError):  # macOS does not bound it
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_OPEN_FILES, _MAX_OPEN_FILES))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])  # its signal ends the process
        answer = json.dumps(_answer(request)).encode() + b"\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


def _answer(request: dict[str, Any]) -> dict[str, str]:
    """The rendered text, or the reason why there is none and its kind."""
    try:
        return {"text": _render(request)}
    except RaisedByTemplateError as error:
        return {"raised": _one_line(error)}
    except TemplateSyntaxError as error:
        return {"refused": f"it is not valid Jinja: {_one_line(error.message)}, line {error.lineno}"}
    except SecurityError as error:
        return {"refused": _one_line(error)}
    except MemoryError:
        return {"refused": f"it needs more than {MAX_BYTES >> 20} MiB of memory"}
    except _RefusedError as error:
        return {"refused": str(error)}
    except Exception as error:  # a template can raise any
        return {"raised": f"{type(error).__name__}: {_one_line(error)}"}


def _render(request: dict[str, Any]) -> str:
    template, placeholders = _compile(request["template"]), Placeholders(request["block"])
    values, limit = request["values"], request["max_chars"]
    _ENVIRONMENT.now = datetime.now()
    text = _render_bounded(template, placeholders, values, limit)
    plain_values = placeholders.restore(values)
    if plain_values != values:  # what the template writes must not depend on the placeholders
        plain_text = _render_bounded(template, placeholders, plain_values, limit)
        if plain_text != placeholders.restore(text):
            raise _RefusedError("it changes the text of a message, which then looks like its own")
    return text


def _render_bounded(
    template: Template, placeholders: Placeholders, values: dict[str, Any], limit: int
) -> str:
    _ENVIRONMENT.placeholders = placeholders
    chunks, size = [], 0
    for chunk in template.generate(**placeholders.roles, **values):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _RefusedError(f"it writes more than {limit:,} characters")
    return "".join(chunks)


class _RefusedError(Exception):
    """The rendered text is not allowed."""


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


if __name__ == "__main__":
    serve_requests()

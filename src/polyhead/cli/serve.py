"""``polyhead serve``: an HTTP service and a page for one model."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.cli.options import (
    AS_TRAINED,
    CacheName,
    Device,
    Dtype,
    Short,
    With,
    opened,
    parts,
    tell_unguessed,
)
from polyhead.document import parse_part
from polyhead.errors import UserError
from polyhead.registry import Choice
from polyhead.serve.limits import Limits


def run(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="directory of a trained run, or of a published checkpoint"),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="show the trainings in this directory, live, in place of a model"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; others than this machine's own need a key")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 is any free one")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="id of the model", show_default="name of the directory")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="keys, one a line, of which requests must carry one; POLYHEAD_API_KEY is another"),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="every answer is the same to the last bit, whatever else runs; slower at load",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="refuse unknown fields; without it they are ignored and named in a response header",
        ),
    ] = False,
    cache: CacheName = None,
    shortlist: Short = False,
    chat: Annotated[
        str | None,
        typer.Option(
            help="how conversations are written, e.g. chatml; see polyhead parts chat",
            show_default=AS_TRAINED,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="sequences that are decoded at once")] = 128,
    chunk: Annotated[int, typer.Option(min=1, help="known tokens read in a step")] = 512,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of the model", show_default="all cores")
    ] = None,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    max_waiting: Annotated[
        int, typer.Option(min=1, help="texts that may wait; with more a request gets 429")
    ] = Limits.waiting,
    max_batch: Annotated[int, typer.Option(min=1, help="texts of a request")] = Limits.batch,
    max_chars: Annotated[int, typer.Option(min=1, help="characters of a text")] = Limits.chars,
    max_body: Annotated[int, typer.Option(min=1, help="bytes of a request")] = Limits.body,
    max_n: Annotated[int, typer.Option(min=1, help="outputs of a text")] = Limits.n,
    max_beams: Annotated[int, typer.Option(min=1, help="hypotheses of a beam search")] = Limits.beams,
    max_tokens: Annotated[int, typer.Option(min=1, help="new tokens of an output")] = Limits.max_tokens,
    max_connections: Annotated[
        int, typer.Option(min=1, help="connections open at once")
    ] = Limits.connections,
    timeout: Annotated[float, typer.Option(help="seconds until a request must be answered")] = Limits.timeout,
    write_timeout: Annotated[
        float, typer.Option(help="seconds for which a client may read nothing of its answer")
    ] = Limits.write_timeout,
    stall: Annotated[
        float, typer.Option(help="seconds without a sign of the model after which it counts as hung")
    ] = Limits.stall,
    grace: Annotated[
        float, typer.Option(help="seconds to finish what was accepted when told to stop")
    ] = Limits.grace,
    log: Annotated[
        bool,
        typer.Option("--log/--no-log", help="a line on standard error for each request, without its text"),
    ] = True,
) -> None:
    """Serve a model over HTTP, with the routes that OpenAI's clients know, and a page to try it on.

    SIGTERM or Ctrl-C lets accepted requests finish; a second one ends at once.

    \b
    polyhead serve runs/shakespeare
    polyhead serve runs/multi30k --port 8080 --deterministic
    polyhead serve runs/multi30k --host 0.0.0.0 --api-key-file keys.txt
    polyhead serve --runs runs/
    """
    if runs is not None:
        show_runs(directory, runs, host, port, api_key_file)
        return
    if directory is None:
        raise UserError("RUN: missing; name a run to serve, or give --runs DIR to see how trainings go")
    from polyhead.serve.keys import check_host, environment, read_keys

    limits = Limits(
        body=max_body, chars=max_chars, batch=max_batch, n=max_n, beams=max_beams, max_tokens=max_tokens, waiting=max_waiting,
        connections=max_connections, timeout=timeout, write_timeout=write_timeout, stall=stall, grace=grace,
    )  # fmt: skip
    keys = read_keys(api_key_file, environment())
    check_host(host, keys)
    options: dict[str, Any] = {
        "rows": rows,
        "chunk": chunk,
        "chat": None if chat is None else Choice.read(parse_part(chat)),
    }
    options |= parts(cache=cache) | ({"shortlist": True} if shortlist else {})
    for needed in ("uvicorn", "prometheus_client"):
        import_module(needed)  # what is missing is told before torch and the model are loaded
    import torch

    from polyhead.serve.server import serve
    from polyhead.serve.service import Service
    from polyhead.serve.sockets import address, listen

    sock = listen(host, port)
    if threads is not None:
        torch.set_num_threads(threads)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("polyhead.serve").setLevel(logging.INFO if log else logging.ERROR)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # its messages may repeat what a client wrote
    model = opened(directory, others, dtype, device)
    called = name or (directory if not Path(directory).exists() else Path(directory).resolve().name)
    if not called.isprintable() or not 0 < len(called) <= 200:
        raise UserError(f"--name {called!r} is no name that a request could give")
    tell_unguessed(model)
    service = Service(model, called, limits, keys, strict=strict, deterministic=deterministic, **options)
    about = f"{called} ({service.kind}): {', '.join(f'/v1/{task}' for task in service.tasks)}"
    serve(service, sock, lambda: print(f"{about}\nready at {address(sock)}", flush=True))


def show_runs(model: str | None, directory: Path, host: str, port: int, api_key_file: Path | None) -> None:
    """Serve the pages of trainings; no model is loaded."""
    from polyhead.serve.keys import is_loopback

    if model is not None:
        raise UserError(
            f"--runs shows trainings and loads no model: leave {model} out, or serve it by itself"
        )
    if api_key_file is not None or not is_loopback(host):
        raise UserError("--runs serves this machine alone, without keys: leave --host and --api-key-file out")
    from polyhead.serve.runs import check_runs, serve_runs
    from polyhead.serve.sockets import address, listen

    check_runs(directory)
    sock = listen(host, port)
    serve_runs(
        directory, sock, lambda: print(f"trainings in {directory}\nready at {address(sock)}", flush=True)
    )

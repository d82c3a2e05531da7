"""``polyhead serve``: serve a model over HTTP, with a web page."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.cli.options import (
    MODEL,
    ChatTemplateOption,
    Device,
    Dtype,
    EnsembleOption,
    ShortlistOption,
    config_options,
    load_run,
    read_chat_template,
)
from polyhead.config.generation_config import GenerationConfig, verb_settings
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.serve.limits import Limits

LIMIT_KEYS = [
    key for key in Limits.model_fields if key not in ("max_header", "header_timeout", "body_timeout")
]


@config_options(GenerationConfig, *verb_settings("serve"), heading="Decoding")
@config_options(Limits, *LIMIT_KEYS, heading="Limits", default=None)
def run(
    directory: Annotated[
        str | None, typer.Argument(metavar="RUN", help="path of a trained run or of a published checkpoint")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="show the training runs in this directory, live, instead of serving a model"
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="address to listen on; addresses other than this machine's own require an API key"),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free port")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="id of the model", show_default="name of the directory")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="path of a file of API keys, one per line, one of which each request must send; "
            "POLYHEAD_API_KEY adds another"
        ),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            help="CORS: origin of web pages that may use the service, e.g. http://localhost:3000, or * for "
            "all; may be repeated"
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="bitwise identical answers, independent of concurrent requests; slower under load",
        ),
    ] = False,
    strict_fields: Annotated[
        bool,
        typer.Option(
            "--strict-fields",
            help="reject unknown fields; default: ignore them and name them in a response header",
        ),
    ] = False,
    chat_template: ChatTemplateOption = None,
    shortlist: ShortlistOption = False,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="maximum number of sequences decoded at once", rich_help_panel=MODEL)
    ] = 128,
    prefill_chunk: Annotated[
        int,
        typer.Option(
            min=1, help="maximum number of prompt tokens processed per step (prefill)", rich_help_panel=MODEL
        ),
    ] = 512,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of CPU threads of the model", show_default="all cores", rich_help_panel=MODEL
        ),
    ] = None,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="log each request on standard error, without its text")
    ] = True,
    **settings: Any,
) -> None:
    """Serve a model over HTTP, with endpoints compatible with OpenAI's clients and a demo page.

    SIGTERM or Ctrl-C lets accepted requests finish; a second one exits at once.

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
        raise UserError("RUN: missing; pass a run to serve, or --runs DIR to monitor trainings")
    from polyhead.serve.auth import check_host, check_origins, read_keys

    limits = Limits(**{key: settings.pop(key) for key in LIMIT_KEYS})
    keys = read_keys(api_key_file, os.environ)
    check_host(host, keys)
    options: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "prefill_chunk": prefill_chunk,
        "allowed_origins": allowed_origins or [],
    }
    read_chat_template(chat_template, settings)
    if "chat" in settings:
        settings["chat"] = Choice.from_config(settings["chat"])
    options |= settings | ({"shortlist": True} if shortlist else {})
    for module in ("uvicorn", "starlette", "prometheus_client"):
        import_module(module)  # fails before torch and the model are loaded
    check_origins(options["allowed_origins"])
    import torch

    from polyhead.serve.http.server import run_server
    from polyhead.serve.http.sockets import get_url, listen
    from polyhead.serve.openai.routes import make_app
    from polyhead.serve.service import Service

    sock = listen(host, port)
    if threads is not None:
        torch.set_num_threads(threads)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("polyhead.serve").setLevel(logging.INFO if log else logging.ERROR)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # its messages may contain client text
    model = load_run(directory, others, dtype, device, in_memory=True)
    model_name = name or (directory if not Path(directory).exists() else Path(directory).resolve().name)
    if not model_name.isprintable() or not 0 < len(model_name) <= 200:
        raise UserError(f"--name {model_name!r} is not a valid model name for requests")
    service = Service(
        model, model_name, limits, keys, strict_fields=strict_fields, deterministic=deterministic, **options
    )
    description = f"{model_name} ({service.kind}): {', '.join(f'/v1/{task}' for task in service.tasks)}"
    run_server(make_app(service), sock, lambda: print(f"{description}\nready at {get_url(sock)}", flush=True))


def show_runs(model: str | None, directory: Path, host: str, port: int, api_key_file: Path | None) -> None:
    """Serve the pages of training runs; no model is loaded."""
    from polyhead.serve.auth import is_loopback

    if model is not None:
        raise UserError(f"--runs shows trainings and loads no model: remove {model}, or serve it separately")
    if api_key_file is not None or not is_loopback(host):
        raise UserError("--runs serves only this machine, without API keys: remove --host and --api-key-file")
    from polyhead.serve.http.run_pages import check_runs, serve_runs
    from polyhead.serve.http.sockets import get_url, listen

    check_runs(directory)
    sock = listen(host, port)
    serve_runs(
        directory, sock, lambda: print(f"trainings in {directory}\nready at {get_url(sock)}", flush=True)
    )

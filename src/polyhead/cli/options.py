"""Options that several verbs share."""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from polyhead.cli.app import pause_collector
from polyhead.config.generation_config import strip_scope
from polyhead.config.yaml_io import parse_part
from polyhead.core.blank_text import is_blank
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from polyhead.run.run import Run

MODEL = "Model and machine"  # heading of options in the help
FROM_RUN = "from the run"  # shown as the default of an option
_DEFAULT = re.compile(r"; default: .*$")


def config_options(
    config: type[BaseModel], *keys: str, heading: str, default: str | None = FROM_RUN
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb one option per key of a config, in place of its parameter ``**settings``.

    Type and help of an option come from the field. ``settings`` has the options of the command line, in which
    parts such as ``h2o,budget=256`` are parsed; the config checks their values. The help lists the
    options under ``heading``. ``default`` is shown as the default; None shows, and passes, that of the field.
    """
    options = [_make_parameter(key, config.model_fields[key], heading, default) for key in keys]
    parts = {key for key in keys if Choice in _members(config.model_fields[key].annotation)}

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**arguments: Any) -> None:
            unset = {key for key in keys if arguments[key] is None}
            arguments = {key: value for key, value in arguments.items() if key not in unset}
            verb(**arguments | {key: parse_part(arguments[key]) for key in parts - unset})

        own = [
            p
            for p in inspect.signature(verb, eval_str=True).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        parameters = sorted([*own, *options], key=lambda p: (p.kind, p in own))  # options of configs first
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _make_parameter(name: str, field: FieldInfo, heading: str, default: str | None) -> inspect.Parameter:
    """The parameter of a verb for one field; its value is None if the option is not set."""
    members = set(_members(field.annotation))
    value_type = next((t for t in (bool, float, int) if members - {type(None)} == {t}), str)
    text = _DEFAULT.sub("", strip_scope(field.description or ""))
    if field.examples:
        text += f", e.g. {' or '.join(field.examples)}"
    if Choice in members:
        text += f"; see polyhead components {name}"
    option = typer.Option(help=text, show_default=default or True, rich_help_panel=heading)
    annotation = Annotated[value_type | None, option]  # type: ignore[valid-type]
    value = None if default else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)


TextSource = Annotated[
    str,
    typer.Argument(
        metavar="FILE|TEXT", help="path of a file with one text per line, or a text, or - for standard input"
    ),
]
TrainedRun = Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained run")]
ShownText = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="source text; for a model other than an encoder-decoder, the text"),
]
ShownTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="translation of the source text; for a classifier, second text of a pair; default: "
        "the run's own translation",
    ),
]
ReadBatch = Annotated[
    int,
    typer.Option(
        min=1,
        help="number of texts read and processed together; 1 if they are typed in a terminal",
        rich_help_panel=MODEL,
    ),
]
OutputFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="path of the output, instead of standard output")
]
SourceLang = Annotated[
    str | None,
    typer.Option(help="source language of a multilingual model, e.g. en or en_XX", show_default=FROM_RUN),
]
TargetLang = Annotated[
    str | None, typer.Option(help="target language of a multilingual model", show_default=FROM_RUN)
]
TerminologyOption = Annotated[
    str | None,
    typer.Option(
        "--terminology",
        metavar="FILE",
        help="required translations: per line a word, a tab and its translation; alternatives "
        "follow after further tabs",
    ),
]
ShortlistOption = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="restrict the output to the lexical shortlist of the source, which is faster; run "
        "polyhead shortlist RUN first",
        rich_help_panel=MODEL,
    ),
]
EnsembleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN",
        help="another run for an ensemble, which averages probabilities; may be repeated",
        rich_help_panel=MODEL,
    ),
]
ChatTemplateOption = Annotated[
    Path | None,
    typer.Option(
        "--chat-template",
        metavar="FILE",
        help="path of a Jinja chat template, in place of that of the run",
        show_default=FROM_RUN,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="dtype of the weights: fp32; bf16: half the memory, faster if the CPU supports it; "
        "int8: faster still, slightly less accurate; int4: half the size of int8, less "
        "accurate",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="device: cpu, cuda, cuda:1 ...; auto: a GPU if there is one, but the CPU for int8 and int4",
        rich_help_panel=MODEL,
    ),
]


def page_option(default: str) -> Any:
    """The option for the path of a page; ``default`` is shown."""
    return typer.Option(metavar="FILE", help="path of the page", show_default=default)


def check_texts(verb: str, directory: Path, **texts: str | None) -> None:
    """Raise a UserError for an argument that is blank, or the path of a file where a text is expected."""
    for name, text in texts.items():
        if text is not None and is_blank(text):
            raise UserError(f"{name} is empty: expected text")
        if text is not None and os.path.isfile(text):
            raise UserError(
                f"{name} {text!r} is the path of a file; expected a text: "
                f'polyhead {verb} {shlex.quote(str(directory))} "$(head -n 1 {shlex.quote(text)})"'
            )


def drop_none(**options: Any) -> dict[str, Any]:
    """Return the options that are set (not None)."""
    return {name: value for name, value in options.items() if value is not None}


def check_kind(directory: str | Path, *kinds: str) -> None:
    """Check that a run is a directory, and the kind of its model, before files and options are read.

    ``load_run`` reports other errors. Without ``kinds`` any is right.
    """
    with pause_collector():
        from polyhead.hf.hub import is_repo_id
        from polyhead.models.build import CAPABILITIES, check_model_kind
        from polyhead.run.load import not_a_run_message
        from polyhead.run.run_directory import read_run_config

    if Path(directory).is_file() or not (Path(directory).is_dir() or is_repo_id(str(directory))):
        raise UserError(not_a_run_message(Path(directory)))
    try:
        config = read_run_config(Path(directory)).model
    except (UserError, OSError):
        return
    check_model_kind(config, kinds or [*CAPABILITIES])


def load_run(
    directory: str | Path,
    ensemble: Sequence[str] | None,
    dtype: str,
    device: str,
    *kinds: str,
    in_memory: bool = False,
) -> Run:
    """Load a run, or an ensemble, of one of ``kinds``, optimised for inference in a process of its own."""
    with pause_collector():
        from polyhead.kernels.malloc_tuning import tune_malloc
        from polyhead.models.build import CAPABILITIES, check_model_kind
        from polyhead.run.load import load

    tune_malloc()
    paths = [directory, *(ensemble or [])]
    run = load(paths, dtype=dtype, fast=True, device=device, in_memory=in_memory)
    check_model_kind(run.config, kinds or [*CAPABILITIES])
    return run


def read_chat_template(path: Path | None, settings: dict[str, Any]) -> None:
    """Put the chat format of ``--chat-template`` into the settings of a verb."""
    if path is None:
        return
    if settings.get("chat") is not None:
        raise UserError("--chat and --chat-template cannot be combined: both set the chat format")
    from polyhead.chat.detect_template import read_template_file

    settings["chat"] = read_template_file(path)

"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.cli.config_options import FROM_RUN
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from polyhead.run.run import Run

TextSource = Annotated[
    str,
    typer.Argument(
        metavar="FILE|TEXT", help="path of a file with one text per line, or a text, or - for standard input"
    ),
]
ShownRun = Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained run")]
ShownText = Annotated[
    str,
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
        min=1, help="number of texts read and processed together; 1 if they are typed in a terminal"
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
    ),
]
BEAM_SEARCH_KEYS = (
    "beam_size", "length_penalty", "min_new_tokens", "early_stopping", "no_repeat_ngram_size", "cache",
    "batch_tokens",
)  # fmt: skip
EnsembleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ensemble",
        metavar="RUN",
        help="another run for an ensemble, which averages probabilities; may be repeated",
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
        "accurate"
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="device: cpu, cuda, cuda:1 ...; auto: a GPU if there is one, but the CPU for int8 and int4"
    ),
]


def drop_none(**options: Any) -> dict[str, Any]:
    """Return the options that are set (not None)."""
    return {name: value for name, value in options.items() if value is not None}


def load_run(directory: str | Path, ensemble: Sequence[str] | None, dtype: str, device: str) -> Run:
    """Load a run, or an ensemble, optimised for inference in a process of its own."""
    from polyhead.kernels.malloc_tuning import tune_malloc
    from polyhead.run.load import load

    tune_malloc()
    return load([directory, *(ensemble or [])], dtype=dtype, fast=True, device=device)


def read_chat_template(path: Path | None, settings: dict[str, Any]) -> None:
    """Put the chat format of ``--chat-template`` into the settings of a verb."""
    if path is None:
        return
    if settings.get("chat") is not None:
        raise UserError("--chat and --chat-template cannot be combined: both set the chat format")
    from polyhead.chat.detect_template import read_template_file

    settings["chat"] = read_template_file(path)

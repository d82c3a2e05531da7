"""Options that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.config.yaml_io import parse_part

if TYPE_CHECKING:
    from polyhead.run.run import Run

AS_TRAINED = "from the run"  # default of an option

TextSource = Annotated[
    str,
    typer.Argument(
        metavar="FILE|TEXT", help="path of a file with one text per line, or a text, or - for standard input"
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
Temperature = Annotated[
    float | None,
    typer.Option(
        help="sampling temperature: values < 1 are more conservative, values > 1 more diverse, 0 is greedy",
        show_default=AS_TRAINED,
    ),
]
TopK = Annotated[
    int | None, typer.Option(help="sample from the k most likely tokens; 0: all", show_default=AS_TRAINED)
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="sample from the most likely tokens with this total probability", show_default=AS_TRAINED
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="sample from tokens with at least this fraction of the highest probability",
        show_default=AS_TRAINED,
    ),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="values > 1 discourage repetition", show_default=AS_TRAINED)
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(
        help="-2 to 2, subtracted from a token's logit for each occurrence in the output",
        show_default=AS_TRAINED,
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(
        help="-2 to 2, subtracted once from the logit of a token that occurs in the output",
        show_default=AS_TRAINED,
    ),
]
GrammarOption = Annotated[
    str | None,
    typer.Option(
        "--form",
        help="constrain the output to a grammar, e.g. json or 'choice,among=[red, blue]'; null: "
        "no constraint; see polyhead parts form",
        show_default=AS_TRAINED,
    ),
]
BeamSize = Annotated[
    int | None, typer.Option(help="number of beams; 1 is greedy search", show_default=AS_TRAINED)
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="values > 0 favour longer outputs", show_default=AS_TRAINED)
]
MinNewTokens = Annotated[
    int | None, typer.Option(help="minimum number of output tokens", show_default=AS_TRAINED)
]
EarlyStoppingOption = Annotated[
    str | None,
    typer.Option(help="stopping rule of beam search: true, false or never", show_default=AS_TRAINED),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        help="number of tokens decoded together; a smaller number needs less memory", show_default=AS_TRAINED
    ),
]
NoRepeatNgramSize = Annotated[
    int | None,
    typer.Option(
        "--no-repeat-ngram-size", help="no n-gram of this size occurs twice", show_default=AS_TRAINED
    ),
]
SourceLang = Annotated[
    str | None,
    typer.Option(help="source language of a multilingual model, e.g. en or en_XX", show_default=AS_TRAINED),
]
TargetLang = Annotated[
    str | None, typer.Option(help="target language of a multilingual model", show_default=AS_TRAINED)
]
CacheName = Annotated[
    str | None, typer.Option(help="KV cache, e.g. static or h2o,budget=256", show_default=AS_TRAINED)
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
EnsembleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="RUN",
        help="another run for an ensemble, which averages probabilities; may be repeated",
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


def given_options(**options: Any) -> dict[str, Any]:
    """Return the options that are given (not None)."""
    return {name: value for name, value in options.items() if value is not None}


def given_parts(**options: str | None) -> dict[str, Any]:
    """Parse the parts that are given; ``null`` disables that of the run."""
    return {name: parse_part(text) for name, text in given_options(**options).items()}


def load_run(directory: str | Path, ensemble: Sequence[str] | None, dtype: str, device: str) -> Run:
    """Load a run, or an ensemble, optimised for inference in a process of its own."""
    from polyhead.kernels.malloc_tuning import tune_malloc
    from polyhead.run.load import load

    tune_malloc()
    return load([directory, *(ensemble or [])], dtype=dtype, fast=True, device=device)


def warn_no_speculation(model: Run) -> None:
    """Warn if the run has a speculative decoding setting, which this verb does not use."""
    choice = model.generation.speculate
    if choice is not None and model.kind == "decoder":
        print(
            f"polyhead: generation.speculate of this run ({choice.name}) has no effect here: polyhead generate and "
            "run.generate alone guess tokens",
            file=sys.stderr,
        )

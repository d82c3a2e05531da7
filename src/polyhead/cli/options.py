"""Options that many verbs share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.document import parse_part

if TYPE_CHECKING:
    from polyhead.run import Run

AS_TRAINED = "of the run"  # what holds where an option is not given

Texts = Annotated[
    str,
    typer.Argument(
        metavar="FILE|TEXT", help="a file with a text a line, a text itself, or - for standard input"
    ),
]
Chunk = Annotated[
    int, typer.Option(min=1, help="texts read before the first is answered; 1 in a conversation")
]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="write there, in place of standard output")]
Temperature = Annotated[
    float | None, typer.Option(help="below 1 safer, above 1 bolder, 0 the likeliest", show_default=AS_TRAINED)
]
TopK = Annotated[
    int | None, typer.Option(help="only the k likeliest tokens; 0 is all", show_default=AS_TRAINED)
]
TopP = Annotated[
    float | None,
    typer.Option(help="the likeliest tokens with this much probability", show_default=AS_TRAINED),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="only tokens at least this fraction as likely as the likeliest", show_default=AS_TRAINED
    ),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="above 1 against saying things again", show_default=AS_TRAINED)
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(
        help="-2 to 2, taken from a token's logit for every time it was said", show_default=AS_TRAINED
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(help="-2 to 2, taken from a token's logit once it was said", show_default=AS_TRAINED),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--form",
        help="what it must look like, e.g. json or 'choice,among=[red, blue]', or null for anything; see polyhead parts form",
        show_default=AS_TRAINED,
    ),
]
BeamSize = Annotated[int | None, typer.Option(help="hypotheses kept, 1 is greedy", show_default=AS_TRAINED)]
LengthPenalty = Annotated[
    float | None, typer.Option(help="above 0 favours longer outputs", show_default=AS_TRAINED)
]
MinNewTokens = Annotated[int | None, typer.Option(help="shortest output, in tokens", show_default=AS_TRAINED)]
EarlyStopping = Annotated[str | None, typer.Option(help="true, false or never", show_default=AS_TRAINED)]
BatchTokens = Annotated[
    int | None,
    typer.Option(help="tokens decoded together; less needs less memory", show_default=AS_TRAINED),
]
NoRepeat = Annotated[
    int | None,
    typer.Option(
        "--no-repeat-ngram-size", help="no n-gram of this length comes twice", show_default=AS_TRAINED
    ),
]
SourceLang = Annotated[
    str | None, typer.Option(help="of models of many languages, e.g. en or en_XX", show_default=AS_TRAINED)
]
TargetLang = Annotated[str | None, typer.Option(help="the same of the output", show_default=AS_TRAINED)]
CacheName = Annotated[
    str | None, typer.Option(help="KV cache, e.g. static or h2o,budget=256", show_default=AS_TRAINED)
]
TermsFile = Annotated[
    str | None,
    typer.Option(
        "--terms",
        metavar="FILE",
        help="what words must become: on each line a word, a tab, its translation, others behind more tabs",
    ),
]
Short = Annotated[
    bool,
    typer.Option(
        "--shortlist", help="say only what the source suggests: faster; polyhead shortlist RUN comes first"
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="RUN",
        help="another run to ensemble with, by the mean of probabilities; may be given again",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="fp32; bf16: half the memory, faster where the CPU has it; int8: faster still, a little less exact; int4: half the bytes of that, less exact"
    ),
]
Device = Annotated[
    str,
    typer.Option(help="cpu, cuda, cuda:1 ...; auto: a GPU where there is one, but the CPU for int8 and int4"),
]


def typed(**options: Any) -> dict[str, Any]:
    """The options that were typed."""
    return {name: value for name, value in options.items() if value is not None}


def parts(**options: str | None) -> dict[str, Any]:
    """The parts that were typed; ``null`` puts off the one of the run."""
    return {name: parse_part(text) for name, text in typed(**options).items()}


def opened(directory: str | Path, others: Sequence[str] | None, dtype: str, device: str) -> Run:
    """The run that a verb was given, or those that decide together, laid out to be used in a process of its own."""
    from polyhead.fast.memory import tune_memory
    from polyhead.loading import load

    tune_memory()
    return load([directory, *(others or [])], dtype=dtype, fast=True, device=device)


def tell_unguessed(model: Run) -> None:
    """Say that nobody guesses tokens here, where the run says that somebody does."""
    choice = model.generation.speculate
    if choice is not None and model.kind == "decoder":
        print(
            f"polyhead: generation.speculate of this run ({choice.name}) has no effect here: polyhead generate and "
            "run.generate alone guess tokens",
            file=sys.stderr,
        )

"""``polyhead embed``: texts to vectors."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.answers import output_place
from polyhead.cli.lines import Counter, chunk_size, harmless, lines_or_text, one_line
from polyhead.cli.options import AS_TRAINED, Chunk, Device, Dtype, Texts, opened, typed
from polyhead.data.reading import chunks
from polyhead.errors import UserError


def run(
    directory: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="directory of a trained encoder, classifier or language model"),
    ],
    source: Texts = "-",
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean, first, last or max of the tokens' vectors, or the model's own",
            show_default=AS_TRAINED,
        ),
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="make the length of each vector 1", show_default=AS_TRAINED)
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|TEXT",
            help="what stands before each text: a name of the run's prompts, or a text; '' for nothing",
            show_default=AS_TRAINED,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="write there: .npy, or .jsonl with the texts; else tabs on standard output"
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="instead of vectors, how like this text each is: the cosine, and the text"
        ),
    ] = None,
    like_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|TEXT", help="what stands before the text of --like", show_default="as --prompt"
        ),
    ] = None,
    chunk: Chunk = 512,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Make one vector of each text: a line of numbers for each line, separated by tabs.

    Texts longer than the run's max_text_len, or the model's max_len, are cut, and counted on standard error.

    \b
    polyhead embed runs/wikitext sentences.txt --output vectors.npy
    polyhead embed runs/wikitext sentences.txt --like "a church in the north of England" | sort -rn | head
    polyhead embed runs/e5 pages.txt --prompt passage --like "How high is it?" --like-prompt query
    """
    if output is not None and output.suffix not in (".npy", ".jsonl"):
        raise UserError(f"--output {output}: wanted a name that ends with .npy or .jsonl")
    if output is not None and like is not None:
        raise UserError("--like prints how like the texts are; without it --output writes their vectors")
    if like_prompt is not None and like is None:
        raise UserError("--like-prompt stands before the text of --like: give that too, or --prompt")
    output_place(output, [source], directory)
    given = lines_or_text(source)
    from polyhead.analysis.vectors import cosine
    from polyhead.cli.vector_file import rows, vector_file

    changes = typed(pooling=pooling, normalize=normalize, prompt=prompt)
    of_like = changes | ({} if like_prompt is None else {"prompt": like_prompt})
    loaded, counter = opened(directory, None, dtype, device), Counter(prints=output is None)
    cut = 0
    # a run that cannot is told before the first line comes
    other, short, most = loaded.embedded([] if like is None else [like], **of_like)
    if short:
        print(f"polyhead: --like is cut to {most} tokens", file=sys.stderr)
    with nullcontext() if output is None else vector_file(output, other.size(1)) as file:
        for texts in chunks(given, chunk_size(source, chunk)):
            vectors, short, most = loaded.embedded(texts, **changes)
            if output is not None and file is not None:
                file.add(rows(output, texts, vectors), len(texts))
            elif like is not None:
                for text, near in zip(texts, cosine(vectors, other)[:, 0].tolist(), strict=True):
                    print(f"{near:.4f}\t{harmless(one_line(text))}")
            else:
                for row in vectors.tolist():
                    print("\t".join(f"{value:.6g}" for value in row))
            print(end="", flush=True)
            counter.add(len(texts))
            cut += short
    counter.close()
    if cut:
        print(f"polyhead: cut to {most} tokens: {cut:,} of {counter.lines:,} texts", file=sys.stderr)

"""``polyhead embed``: embed texts as vectors."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.cli.config_options import FROM_RUN, config_options
from polyhead.cli.line_io import (
    LineCounter,
    LongestLine,
    choose_read_batch,
    escape_terminal,
    print_warning,
    read_lines_or_text,
    to_one_line,
)
from polyhead.cli.options import Device, Dtype, ReadBatch, TextSource, drop_none, load_run
from polyhead.cli.output_file import check_output_path
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.data.readers.reader_common import iter_chunks


@config_options(GenerationConfig, "pooling", "normalize")
def run(
    directory: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="path of a trained encoder, classifier or language model"),
    ],
    source: TextSource = "-",
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|TEXT",
            help="prompt put before each text: a name of the run's prompts, or a text; '' for none",
            show_default=FROM_RUN,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="path of the output: .npy, or .jsonl with the texts; default: tab-separated numbers "
            "on standard output",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="instead of embeddings, print the cosine similarity of each text to this text, and the text",
        ),
    ] = None,
    like_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|TEXT", help="prompt put before the text of --like", show_default="as --prompt"
        ),
    ] = None,
    read_batch: ReadBatch = 512,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    **settings: Any,
) -> None:
    """Compute an embedding of each text: one line of tab-separated numbers per input line.

    Texts longer than the run's embed_max_len, or the model's max_len, are truncated, and their number is
    printed on standard error.

    \b
    polyhead embed runs/wikitext sentences.txt --output vectors.npy
    polyhead embed runs/wikitext sentences.txt --like "a church in the north of England" | sort -rn | head
    polyhead embed runs/e5 pages.txt --prompt passage --like "How high is it?" --like-prompt query
    """
    if output is not None and output.suffix not in (".npy", ".jsonl"):
        raise UserError(f"--output {output}: expected a name that ends with .npy or .jsonl")
    if output is not None and like is not None:
        raise UserError("--like prints similarities; to write embeddings with --output, remove --like")
    if like_prompt is not None and like is None:
        raise UserError("--like-prompt requires --like; otherwise use --prompt")
    check_output_path(output, [source], directory)
    lines = read_lines_or_text(source)
    from polyhead.cli.embedding_file import encode_rows, open_embedding_file
    from polyhead.evaluate.embed import cosine_similarity
    from polyhead.tokenizers.decomposed_text import warn_decomposed

    changes = settings | drop_none(embed_prompt=prompt)
    like_options = changes | ({} if like_prompt is None else {"embed_prompt": like_prompt})
    loaded, counter = load_run(directory, None, dtype, device), LineCounter(prints_to_stdout=output is None)
    lines, longest = warn_decomposed(lines, loaded.tokenizer, print_warning), LongestLine()
    num_truncated = 0
    # fails for an unsuitable model before the first line is read
    query, num_cut, max_tokens = loaded.compute_embeddings([] if like is None else [like], **like_options)
    if num_cut:
        print(f"polyhead: --like is truncated to {max_tokens} tokens", file=sys.stderr)
    with nullcontext() if output is None else open_embedding_file(output, query.size(1)) as file:
        for texts in iter_chunks(lines, choose_read_batch(source, read_batch)):
            vectors, num_cut, max_tokens = loaded.compute_embeddings(texts, **changes)
            if output is not None and file is not None:
                file.add(encode_rows(output, texts, vectors), len(texts))
            elif like is not None:
                for text, similarity in zip(
                    texts, cosine_similarity(vectors, query)[:, 0].tolist(), strict=True
                ):
                    print(f"{similarity:.4f}\t{escape_terminal(to_one_line(text))}")
            else:
                for row in vectors.tolist():
                    print("\t".join(f"{value:.6g}" for value in row))
            print(end="", flush=True)
            if num_cut:
                longest.add(loaded.tokenizer, texts, counter.lines)
            counter.add(len(texts))
            num_truncated += num_cut
    counter.close()
    if num_truncated:
        print(
            f"polyhead: truncated to {max_tokens} tokens: {num_truncated:,} of {counter.lines:,} texts"
            f"{longest.describe()}",
            file=sys.stderr,
        )

"""``polyhead search``: find the texts of a file that are nearest to a query."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.embed import KINDS, Dimensions, EmbeddingRun
from polyhead.cli.line_io import TruncatedLines, escape_terminal, read_lines, to_one_line
from polyhead.cli.options import Device, Dtype, check_kind, load_run
from polyhead.core.errors import UserError


def run(
    directory: EmbeddingRun,
    source: Annotated[str, typer.Argument(metavar="FILE", help="file of texts, one per line")],
    *,
    query: Annotated[
        list[str] | None,
        typer.Option(help="text to search for; may be repeated", show_default="lines of standard input"),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="number of texts found for each query")] = 10,
    rerank: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="cross-encoder that reads the query with each of the 10 k nearest texts, and whose score "
            "decides: a classifier of pairs with one label, as task regression trains",
        ),
    ] = None,
    dimensions: Dimensions = None,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object per query")] = False,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Find the texts that are nearest to a query: score, line number and text, the best first.

    The score is the cosine of the embeddings, or that of the reranker. All texts are compared with each
    query. With several queries, an empty line follows the texts of each.

    \b
    polyhead search runs/pairs sentences.txt --query "a church in the north of England" -k 3
    polyhead search runs/pairs answers.txt --rerank runs/relevance --json < questions.txt
    """
    check_kind(directory, *KINDS)
    if rerank is not None:
        check_kind(rerank, "classifier")
    if source == "-" and not query:
        raise UserError("FILE and the queries cannot both be standard input: give the queries with --query")
    texts = [*read_lines(source)]
    if not texts:
        raise UserError(f"{source} has no lines to search")
    queries: Iterable[str] = query or read_lines("-")
    from polyhead.run.search_texts import check_reranker, search_texts

    loaded = load_run(directory, None, dtype, device, *KINDS)
    reranker = None if rerank is None else load_run(rerank, None, dtype, device, "classifier")
    if reranker is not None:
        check_reranker(reranker)
    vectors, num_truncated, max_tokens = loaded.compute_embeddings(
        texts, normalize=True, dimensions=dimensions
    )
    truncated = TruncatedLines()
    truncated.add(loaded.tokenizer, texts, 0, num_truncated)
    truncated.report(max_tokens, len(texts))
    for text in queries:
        hits = search_texts(loaded, text, texts, vectors.numpy(), k, reranker)
        if as_json:
            row = {"query": text, "hits": [hit._asdict() for hit in hits]}
            print(json.dumps(row, ensure_ascii=False), flush=True)
            continue
        for hit in hits:
            print(f"{hit.score:.4f}\t{hit.line}\t{escape_terminal(to_one_line(hit.text))}")
        print(end="" if query and len(query) == 1 else "\n", flush=True)

"""``polyhead embed``: embed texts, or their tokens, as vectors, also in a file of numpy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from numpy.lib import format as npy

from polyhead.cli.line_io import TruncatedLines, escape_terminal, print_warning, to_one_line
from polyhead.cli.options import (
    FROM_RUN,
    Device,
    Dtype,
    ReadBatch,
    TextSource,
    check_kind,
    config_options,
    drop_none,
)
from polyhead.cli.output_file import PartialFile
from polyhead.cli.text_lines import open_texts, to_json_lines
from polyhead.config.generation_config import GenerationConfig, verb_settings
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from polyhead.evaluate.embed import TokenEmbeddings

KINDS = "encoder", "decoder", "classifier"  # of models that embed texts


def open_embedding_file(path: Path, shape: tuple[int, ...]) -> PartialFile:
    """Open a file for one array (N, *``shape``) float32 (.npy), or one JSON object per text."""

    def make_header(texts: int) -> bytes:
        """Return the header with the size of the array; numpy reserves room for any later size."""
        buffer = BytesIO()
        npy.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (texts, *shape)})
        return buffer.getvalue()

    return PartialFile(path, "vectors", make_header if path.suffix == ".npy" else None)


def encode_rows(
    path: Path, texts: Sequence[str], vectors: Tensor, layers: Sequence[int] | None = None
) -> bytes:
    """Encode a row of the file for each text: its vector, or the vectors of its ``layers``."""
    if path.suffix == ".npy":
        return vectors.numpy().astype("<f4").tobytes()
    names = {} if layers is None else {"layers": list(layers)}
    key = "vector" if layers is None else "vectors"
    pairs = zip(texts, vectors.tolist(), strict=True)
    return _encode_rows({"text": text, **names, key: vector} for text, vector in pairs)


def encode_token_rows(
    texts: Sequence[str], embeddings: Sequence[TokenEmbeddings], layers: Sequence[int] | None = None
) -> bytes:
    """Encode a JSON object for each text: its tokens and their vectors, (T, C) or (L, T, C)."""
    names = {} if layers is None else {"layers": list(layers)}
    return _encode_rows(
        {"text": text, "tokens": one.tokens, **names, "vectors": one.vectors.tolist()}
        for text, one in zip(texts, embeddings, strict=True)
    )


def _encode_rows(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{line}\n" for line in to_json_lines(rows)).encode()


EmbeddingRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="path of a trained encoder, classifier or language model")
]
Dimensions = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="width of the vectors: only the first dimensions of each, which suits models trained for it "
        "(Matryoshka)",
        show_default="the width of the model",
    ),
]


@config_options(GenerationConfig, *verb_settings("embed"), heading="Vectors")
def run(
    directory: EmbeddingRun,
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
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="write a vector for each token: a line per token, which starts with it, and an empty line "
            "after each text; with --output FILE.jsonl a row of the file per text",
        ),
    ] = False,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N,...|all",
            help="write an embedding for each of these layers, on a line that starts with the number of the "
            "layer: 0 is the token embeddings, -1 the last layer",
            show_default="the last layer",
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
    dimensions: Dimensions = None,
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
    polyhead embed runs/wikitext sentences.txt --tokens --layers 0,4 --output tokens.jsonl
    polyhead embed runs/wikitext sentences.txt --like "a church in the north of England" | sort -rn | head
    polyhead embed runs/e5 pages.txt --prompt passage --like "How high is it?" --like-prompt query
    """
    check_kind(directory, *KINDS)
    if output is not None and output.suffix not in (".npy", ".jsonl"):
        raise UserError(f"--output {output}: expected a name that ends with .npy or .jsonl")
    if output is not None and like is not None:
        raise UserError("--like prints similarities; to write embeddings with --output, remove --like")
    if like_prompt is not None and like is None:
        raise UserError("--like-prompt requires --like; otherwise use --prompt")
    layer_numbers = None if layers is None else parse_layer_numbers(layers)
    if like is not None and (tokens or layers is not None):
        raise UserError("--like compares texts by one vector each: remove --tokens and --layers")
    if tokens and output is not None and output.suffix == ".npy":
        raise UserError(f"--output {output}: numbers of tokens differ: use .jsonl with --tokens")
    if tokens and "pooling" in settings:
        raise UserError("--pooling makes one vector of a text, and --tokens writes one per token: remove one")
    loaded, lines, counter = open_texts(directory, source, output, None, dtype, device, *KINDS)
    from polyhead.evaluate.embed import cosine_similarity, resolve_layers

    changes = settings | drop_none(embed_prompt=prompt, dimensions=dimensions)
    truncated = TruncatedLines()
    like_options = changes | ({} if like_prompt is None else {"embed_prompt": like_prompt})
    numbers = None if layer_numbers is None else resolve_layers(layer_numbers, loaded.config.n_layers)
    # fails for an unsuitable model before the first line is read
    query, num_cut, max_tokens = loaded.compute_embeddings(
        [] if like is None else [like], layers=[-1] if tokens else numbers, **like_options
    )
    if num_cut:
        print_warning(f"--like is truncated to {max_tokens} tokens")
    shape = tuple(query.shape[1:])
    with nullcontext() if output is None else open_embedding_file(output, shape) as file:
        for texts in counter.iter_batches(lines, source, read_batch):
            if tokens:
                embedded = loaded.embed_tokens(texts, layers=numbers, **changes)
                num_cut = sum(one.truncated for one in embedded)
            else:
                vectors, num_cut, _ = loaded.compute_embeddings(texts, layers=numbers, **changes)
            if file is not None and tokens:
                file.add(encode_token_rows(texts, embedded, numbers), len(texts))
            elif output is not None and file is not None:
                file.add(encode_rows(output, texts, vectors, numbers), len(texts))
            elif tokens:
                for one in embedded:
                    print(*format_token_lines(one, numbers), "", sep="\n")
            elif like is not None:
                similarities = cosine_similarity(vectors, query)[:, 0].tolist()
                for text, similarity in zip(texts, similarities, strict=True):
                    print(f"{similarity:.4f}\t{escape_terminal(to_one_line(text))}")
            else:
                for row in vectors:
                    print(*format_layer_lines(row, numbers), sep="\n")
            print(end="", flush=True)
            truncated.add(loaded.tokenizer, texts, counter.lines, num_cut)
    truncated.report(max_tokens, counter.lines)


def parse_layer_numbers(text: str) -> list[int] | Literal["all"]:
    """Parse ``--layers``: numbers with commas between them, or "all"."""
    if text == "all":
        return "all"
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"-?[0-9]{1,9}", word) for word in words):
        raise UserError(f"--layers: expected numbers such as 0,4 or -1, or all, not {text!r}")
    return list(map(int, words))


def format_layer_lines(vectors: Tensor, layers: Sequence[int] | None) -> Iterator[str]:
    """One line for the vector (C,) of a text, or one per layer (L, C), which starts with its number."""
    if layers is None:
        yield format_vector(vectors)
        return
    for layer, vector in zip(layers, vectors, strict=True):
        yield f"{layer}\t{format_vector(vector)}"


def format_token_lines(one: TokenEmbeddings, layers: Sequence[int] | None) -> Iterator[str]:
    """The lines of a text's tokens, (T, C) or (L, T, C): token, layer if there are several, and vector."""
    for t, token in enumerate(one.tokens):
        for line in format_layer_lines(one.vectors[..., t, :], layers):
            yield f"{escape_terminal(to_one_line(token))}\t{line}"


def format_vector(vector: Tensor) -> str:
    """Tab-separated numbers."""
    return "\t".join(f"{value:.6g}" for value in vector.tolist())

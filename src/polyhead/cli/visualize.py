"""``polyhead visualize``: plot a model's position scheme and its token embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polyhead.cli.options import TrainedRun, check_kind, page_option
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_file, run_artifacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from polyhead.run.run import Run
    from polyhead.tokenizers.tokenizer import Tokenizer
    from polyhead.viz.embedding_page import TokenPoints


SIDE_SHARE = 0.8  # minimum share of its occurrences on one side for a token to belong to that side
Side = Literal["source", "target", "both"]


def run(
    directory: TrainedRun,
    output: Annotated[Path | None, page_option("RUN/draw.html")] = None,
    tokens: Annotated[
        int, typer.Option(min=5, max=3000, help="number of tokens plotted, the most frequent ones")
    ] = 500,
    side: Annotated[
        Side | None,
        typer.Option(
            help="side whose embeddings and tokens are plotted",
            show_default="both if they are shared, otherwise target",
        ),
    ] = None,
    positions: Annotated[int, typer.Option(min=2, max=512, help="number of positions plotted, from 0")] = 64,
    perplexity: Annotated[
        float, typer.Option(min=2, max=500, help="perplexity of t-SNE: effective number of neighbours")
    ] = 30.0,
) -> None:
    """Plot the position scheme of a model as a heat map, and its token embeddings in two dimensions.

    Writes one self-contained page: what each position adds or rotates, and how similar positions are; the
    most frequent tokens by principal components and by t-SNE. The same run gives the same page.

    \b
    polyhead visualize runs/multi30k
    polyhead visualize runs/multi30k --tokens 1000 --perplexity 50 --output tokens.html
    """
    check_kind(directory)
    from polyhead.run.load import load
    from polyhead.viz.embedding_page import draw_page
    from polyhead.viz.html_page import find_run_links, link_run_pages, save_page

    path = check_output_file(output or directory / "draw.html", inputs=run_artifacts(directory))
    loaded = load(directory, device="cpu")
    if loaded.config.position.name == "learned":
        positions = min(positions, loaded.config.max_len)
    name = directory.resolve().name
    points = select_frequent_tokens(loaded, tokens, choose_side(loaded, side))
    sizes = {
        "parameters": f"{sum(p.numel() for p in loaded.model.parameters()):,}",
        "tokens": f"{loaded.tokenizer.vocab_size:,}",
    }
    text = draw_page(
        lambda: tr("{run}: positions and embeddings", run=name),
        lambda: tr("{parameters} parameters, {tokens} tokens", **sizes),
        loaded.model, points, positions, perplexity,
        links=find_run_links(directory) if path.parent == directory else None,
    )  # fmt: skip
    print(save_page(path, text))
    link_run_pages(directory)


def choose_side(run: Run, side: Side | None) -> Side:
    """Choose whose tokens are drawn: both only if source and target share one embedding."""
    if run.config.kind != "encoder-decoder" and side is not None:
        raise UserError(f"--side {side}: this model has one side only; remove it")
    shared = run.config.kind != "encoder-decoder" or run.config.tie_embeddings in ("all", "inputs")
    if side == "both" and not shared:
        raise UserError(
            "--side both: source and target of this model have separate embeddings; choose source or target"
        )
    return side or ("both" if shared else "target")


def select_frequent_tokens(run: Run, n: int, side: Side) -> TokenPoints:
    """Return the n most frequent tokens of ``side``.

    Without examples in the run these are the first n of the vocabulary.
    """
    import torch

    from polyhead.tokenizers.display import visible_token
    from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
    from polyhead.viz.embedding_page import TokenPoints, find_embeddings

    weight = find_embeddings(run.model)[0 if side == "source" else -1].token.weight
    tokenizer = run.tokenizer if side == "source" else run.tokenizer.target_tokenizer
    counts = count_example_tokens(run)
    if counts is None:
        ids = torch.arange(len(SPECIAL_TOKENS), tokenizer.vocab_size)[:n]
        names = [visible_token(tokenizer, i) for i in ids.tolist()]
        return TokenPoints(weight[ids].detach().float(), names, None, [0] * len(ids), [])
    counts = {"source": counts[:1], "target": counts[-1:], "both": counts}[side]
    total = torch.stack(counts).sum(0)
    ids = total.argsort(descending=True, stable=True)[: min(n, int((total > 0).sum()))]
    share = counts[0][ids] / total[ids]
    of_source, of_target = share >= SIDE_SHARE, share <= 1 - SIDE_SHARE
    kinds = (
        torch.where(of_source, 0, torch.where(of_target, 1, 2)) if len(counts) == 2 else torch.zeros_like(ids)
    )
    groups = name_groups(run) if len(counts) == 2 else []
    names = [visible_token(tokenizer, i) for i in ids.tolist()]
    return TokenPoints(weight[ids].detach().float(), names, total[ids].tolist(), kinds.tolist(), groups)


def name_groups(run: Run) -> list[str]:
    """Return the legend of the colours."""
    data = run.recipe.data if run.recipe else None
    return [
        (data and data.source_lang) or tr("source"),
        (data and data.target_lang) or tr("target"),
        tr("both"),
    ]


def count_example_tokens(run: Run) -> list[Tensor] | None:
    """Count each token in the examples that the run keeps, per side: (V,) each. None without examples."""
    import torch

    from polyhead.run.run_examples import read_examples

    examples = read_examples(run.directory)
    if not examples:
        return None
    is_translator = run.config.kind == "encoder-decoder" and len(examples[0]) == 2
    texts = list(zip(*examples, strict=True)) if is_translator else [[x for row in examples for x in row]]

    def count(tokenizer: Tokenizer, side: Iterable[str]) -> Tensor:
        ids = [i for line in tokenizer.encode(list(side)) for i in line]
        return torch.bincount(torch.tensor(ids), minlength=tokenizer.vocab_size)

    tokenizers = run.tokenizer, run.tokenizer.target_tokenizer
    return [count(tokenizer, side) for tokenizer, side in zip(tokenizers, texts, strict=False)]

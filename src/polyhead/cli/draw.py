"""``polyhead draw``: what a model's positions do, and where its tokens lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.places import file_place, own_files

if TYPE_CHECKING:
    from torch import Tensor

    from polyhead.analysis.draw_page import Tokens
    from polyhead.run import Run


LINES = 20_000  # pairs of the training text in which tokens are counted
CHARACTERS = 2_000_000  # the same of plain text
MOSTLY = 0.8  # the share of a token's places that makes it a token of that language
Side = Literal["source", "target", "both"]


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="where the page goes", show_default="RUN/draw.html")
    ] = None,
    tokens: Annotated[int, typer.Option(min=5, max=3000, help="tokens drawn, the most frequent ones")] = 500,
    side: Annotated[
        Side | None,
        typer.Option(
            help="whose embeddings and tokens", show_default="both where they are shared, else target"
        ),
    ] = None,
    positions: Annotated[int, typer.Option(min=2, max=512, help="positions drawn, from 0 on")] = 64,
    perplexity: Annotated[
        float, typer.Option(min=2, max=500, help="neighbours that t-SNE counts with")
    ] = 30.0,
) -> None:
    """Draw the position scheme of a model as a heat map, and its token embeddings in the plane.

    Writes one self-contained page: what each position adds or turns and how alike positions are; the most frequent
    tokens by their principal components and by t-SNE. The same run gives the same page.

    \b
    polyhead draw runs/multi30k
    polyhead draw runs/multi30k --tokens 1000 --perplexity 50 --out tokens.html
    """
    from polyhead.analysis.draw_page import draw_page
    from polyhead.analysis.page import write
    from polyhead.loading import load

    place = file_place(out or directory / "draw.html", inputs=own_files(directory))
    loaded = load(directory, device="cpu")
    if loaded.config.position.name == "learned":
        positions = min(positions, loaded.config.max_len)
    name = directory.resolve().name
    chosen = frequent(loaded, tokens, side_of(loaded, side))
    lead = tr(
        "{parameters} parameters, {tokens} tokens",
        parameters=f"{sum(p.numel() for p in loaded.model.parameters()):,}",
        tokens=f"{loaded.tokenizer.vocab_size:,}",
    )
    title = tr("{run}: positions and embeddings", run=name)
    text = draw_page(title, lead, loaded.model, chosen, positions, perplexity)
    print(write(place, text))


def side_of(run: Run, side: Side | None) -> Side:
    """Whose tokens: both only where both read one embedding, as in a model that has no two sides."""
    if run.config.kind != "encoder-decoder" and side is not None:
        raise UserError(f"--side {side}: this model has one side only; leave it out")
    shared = run.config.kind != "encoder-decoder" or run.config.tie_embeddings in ("all", "inputs")
    if side == "both" and not shared:
        raise UserError(
            "--side both: this model's source and target have embeddings of their own; choose source or target"
        )
    return side or ("both" if shared else "target")


def frequent(run: Run, n: int, side: Side) -> Tokens:
    """The n most frequent tokens of that side; where the training text cannot be read, the first of the vocabulary."""
    import torch

    from polyhead.analysis.draw_page import Tokens, embeddings
    from polyhead.text.specials import SPECIALS

    weight = embeddings(run.model)[0 if side == "source" else -1].token.weight
    counted = counts(run)
    if counted is None:
        ids = torch.arange(len(SPECIALS), run.tokenizer.vocab_size)[:n]
        return Tokens(
            weight[ids].detach().float(), [run.display(i) for i in ids.tolist()], None, [0] * len(ids), []
        )
    counted = {"source": counted[:1], "target": counted[-1:], "both": counted}[side]
    total = torch.stack(counted).sum(0)
    ids = total.argsort(descending=True, stable=True)[: min(n, int((total > 0).sum()))]
    share = counted[0][ids] / total[ids]
    of_source, of_target = share >= MOSTLY, share <= 1 - MOSTLY
    kinds = (
        torch.where(of_source, 0, torch.where(of_target, 1, 2))
        if len(counted) == 2
        else torch.zeros_like(ids)
    )
    names = groups(run) if len(counted) == 2 else []
    return Tokens(
        weight[ids].detach().float(),
        [run.display(i) for i in ids.tolist()],
        total[ids].tolist(),
        kinds.tolist(),
        names,
    )


def groups(run: Run) -> list[str]:
    """What the colours stand for."""
    data = run.recipe.data if run.recipe else None
    return [
        (data and data.source_lang) or tr("source"),
        (data and data.target_lang) or tr("target"),
        tr("both"),
    ]


def counts(run: Run) -> list[Tensor] | None:
    """How often each token stands in the beginning of the training text, on each side of pairs; None if it is not there."""
    import torch

    from polyhead.data.corpus import read_pairs
    from polyhead.registry import TASK
    from polyhead.train.tasks.translation import Translation, corpus_of

    recipe = run.recipe
    if recipe is None:
        return None
    task = TASK.get(recipe.task.name)
    try:
        texts = (
            list(read_pairs(corpus_of(recipe, "train"), LINES)[:2])
            if task is Translation
            else [first(task.texts(recipe))]
        )
    except (UserError, OSError):
        return None
    size = run.tokenizer.vocab_size
    return [
        torch.bincount(torch.tensor([i for line in tokenizer.encode(side) for i in line]), minlength=size)
        for tokenizer, side in zip((run.tokenizer, run.tokenizer.target), texts, strict=False)
    ]


def first(texts: Iterable[str]) -> list[str]:
    """So many of them that there is enough to count."""
    found, characters = [], 0
    for text in texts:
        found.append(text)
        characters += len(text)
        if characters > CHARACTERS:
            break
    return found

"""``polyhead sizes``: how many parameters, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.errors import UserError, unknown
from polyhead.places import nearest_path
from polyhead.presets import PRESETS, PUBLISHED, VOCABULARY

if TYPE_CHECKING:
    from polyhead.config import ModelConfig


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET|RUN]", help="a model of the literature, or a run; all presets if not given"
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="tokens of a preset", show_default="as its paper")
    ] = None,
) -> None:
    """Count parameters, without memory for them: of the models of the literature, or of one of them or a run by part.

    In formulas H is d_model, E d_embedding, F d_ff, V the vocabulary, T max_len, A n_heads x head_dim, G n_kv_heads x head_dim.

    \b
    polyhead sizes               every preset beside what its paper says
    polyhead sizes bert-base     where its 110 million are, to the last one
    polyhead sizes runs/mine     the same of a run
    """
    from polyhead.analysis import sizes

    if vocab_size is not None and name not in PRESETS:
        raise UserError(
            "--vocab-size is of one preset; a run has its own"
            if name
            else "--vocab-size is of one preset: name it"
        )
    if name is None:
        print(
            f"{'preset':<13} {'parameters':>16}  {'published':>9}  layers  d_model  heads    vocabulary  source"
        )
        for preset in PUBLISHED:
            given, config = PUBLISHED[preset], sizes.published(preset)
            print(
                f"{preset:<13} {sizes.count(config):>16,}  {said(given.parameters):>9}  {layers(config):>6}  {config.d_model:>7}  "
                f"{config.n_heads:>5}  {given.vocab_size:>12,}  {given.paper}"
            )
        return
    config = _config(name, vocab_size)
    found = sizes.parts(config)
    width = max(len(part.name) for part in found)
    for part in found:
        times = f"{part.times} x {part.each:,}" if part.times > 1 else ""
        print(f"{part.name:<{width}}  {part.total:>16,}  {times:>20}  {part.formula}".rstrip())
    print(f"{'all':<{width}}  {sum(part.total for part in found):>16,}")


def said(parameters: float) -> str:
    """1.3e9 -> 1.3B."""
    return f"{parameters / 1e9:g}B" if parameters >= 1e9 else f"{parameters / 1e6:g}M"


def layers(config: ModelConfig) -> str:
    """Of one stack, or of both."""
    return (
        f"{config.n_layers}+{config.decoder_layers}"
        if config.kind == "encoder-decoder"
        else str(config.n_layers)
    )


def _config(name: str, vocab_size: int | None) -> ModelConfig:
    """Of a preset as its paper counted it, or of a run."""
    from polyhead.analysis.sizes import published
    from polyhead.loading import load
    from polyhead.models import preset

    if name in PUBLISHED and vocab_size in (None, PUBLISHED[name].vocab_size):
        return published(name)
    if name in PRESETS:
        return preset(name, vocab_size or VOCABULARY)
    if Path(name).suffix in (".yaml", ".yml"):
        raise UserError(
            f"{name} is a recipe, no preset and no run; polyhead plan {name} tells its parameters"
        )
    if not Path(name).is_dir() and "/" not in name:
        if run := nearest_path(Path(name), "*/", [Path("runs")]):
            raise UserError(f"{name!r} is no preset and no run{run}")
        raise unknown("preset", name, PRESETS)
    return load(name).config

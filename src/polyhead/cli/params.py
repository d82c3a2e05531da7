"""``polyhead params``: count the parameters of presets and runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.config.presets import DEFAULT_VOCAB_SIZE, PRESET_INFO, PRESETS
from polyhead.config.yaml_io import read_yaml
from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.output_paths import did_you_mean_path

if TYPE_CHECKING:
    from polyhead.config.model import ModelConfig


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET|RUN]",
            help="name of a preset (a model of the literature), or path of a run; default: all presets",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="vocabulary size of a preset", show_default="as in its paper")
    ] = None,
) -> None:
    """Count parameters without allocating them: of all presets, or by part of one preset or run.

    Presets are models of the literature. In formulas, H is d_model, E d_embedding, F d_ff, V the vocabulary,
    T max_len, A n_heads x head_dim, G n_kv_heads x head_dim.

    \b
    polyhead params               every preset, and the number in its paper
    polyhead params bert-base     all of its 110 million, by part
    polyhead params runs/mine     the same for a run
    """
    from polyhead.cost import parameter_count

    if vocab_size is not None and name not in PRESETS:
        raise UserError(
            "--vocab-size is for a preset; a run has its own" if name else "--vocab-size requires a preset"
        )
    if name is None:
        print(
            f"{'preset':<13} {'parameters':>16}  {'published':>9}  layers  d_model  heads    vocabulary  "
            "source"
        )
        for preset in PRESET_INFO:
            info, config = PRESET_INFO[preset], parameter_count.published_config(preset)
            n = info.parameters
            published = f"{n / 1e9:g}B" if n >= 1e9 else f"{n / 1e6:g}M"
            layers = str(config.n_layers)
            if config.kind == "encoder-decoder":
                layers += f"+{config.decoder_layers}"
            print(
                f"{preset:<13} {parameter_count.count_model_parameters(config):>16,}  "
                f"{published:>9}  {layers:>6}  {config.d_model:>7}  "
                f"{config.n_heads:>5}  {info.vocab_size:>12,}  {info.paper}"
            )
        return
    config = _load_config(name, vocab_size)
    groups = parameter_count.group_parameters(config)
    width = max(len(part.name) for part in groups)
    for part in groups:
        times = f"{part.times} x {part.params_each:,}" if part.times > 1 else ""
        print(f"{part.name:<{width}}  {part.total:>16,}  {times:>20}  {part.formula}".rstrip())
    print(f"{'all':<{width}}  {sum(part.total for part in groups):>16,}")


def _load_config(name: str, vocab_size: int | None) -> ModelConfig:
    """Load the config of a preset, with the vocabulary of its paper, or of a run."""
    from polyhead.cost.parameter_count import published_config
    from polyhead.models import preset_config
    from polyhead.run.load import load

    if name in PRESET_INFO and vocab_size in (None, PRESET_INFO[name].vocab_size):
        return published_config(name)
    if name in PRESETS:
        return preset_config(name, vocab_size or DEFAULT_VOCAB_SIZE)
    if Path(name).suffix in (".yaml", ".yml"):
        read_yaml(Path(name))  # an error if there is no such file
        raise UserError(
            f"{name} is a recipe, not a preset or a run; polyhead estimate {name} counts its parameters"
        )
    if not Path(name).exists() and "/" not in name:
        if run := did_you_mean_path(Path(name), "*/", [Path("runs")]):
            raise UserError(f"{name!r} is neither a preset nor a run{run}")
        raise unknown_name_error("preset", name, PRESETS)
    return load(name).config

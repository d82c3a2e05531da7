"""``polyhead estimate``: estimate the cost of a design."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyhead.config.presets import DEFAULT_VOCAB_SIZE, PRESET_INFO, PRESETS
from polyhead.config.recipe import Recipe, read_recipe
from polyhead.core.errors import UserError, did_you_mean
from polyhead.core.output_paths import did_you_mean_path

if TYPE_CHECKING:
    from polyhead.config.model import ModelConfig

_Count = partial(typer.Option, min=1)
_Ranks = partial(_Count, rich_help_panel="Several processes")
_Bandwidth = partial(typer.Option, min=0.001, metavar="GB/S", rich_help_panel="Several processes")


def run(
    design: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|PRESET", help="path of a recipe, or name of a preset (a model of the literature)"
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="changes to the recipe, or to the model of a preset, e.g. model.d_model=256",
        ),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe", help="time some training steps and some decoding; --no-probe: run nothing"
        ),
    ] = True,
    batch_size: Annotated[
        int | None, _Count(help="number of rows per batch, for a preset", show_default="1")
    ] = None,
    seq_len: Annotated[
        int | None, _Count(help="number of tokens per row, for a preset", show_default="max_len")
    ] = None,
    train_tokens: Annotated[
        float | None, _Count(help="number of training tokens, for a preset, e.g. 300e9")
    ] = None,
    context_len: Annotated[
        int | None, _Count(help="number of tokens per row in decoding", show_default="data.max_len")
    ] = None,
    decode_batch: Annotated[
        list[int] | None,
        _Count(help="number of rows decoded together; may be repeated", show_default="1 and 32"),
    ] = None,
    data_parallel: Annotated[
        int, _Ranks(help="number of data-parallel ranks: each has the whole model and a share of the batch")
    ] = 1,
    tensor_parallel: Annotated[
        int, _Ranks(help="number of tensor-parallel ranks, which share every layer")
    ] = 1,
    pipeline: Annotated[int, _Ranks(help="number of pipeline stages, which share the layers")] = 1,
    micro_batches: Annotated[int, _Ranks(help="number of micro-batches per batch in the pipeline")] = 1,
    shard: Annotated[
        int, _Ranks(help="number of ranks that shard weights, gradients and optimizer state (FSDP)")
    ] = 1,
    context_parallel: Annotated[
        int, _Ranks(help="number of context-parallel ranks, which share the tokens of a row")
    ] = 1,
    interleave: Annotated[
        int, _Ranks(help="number of model chunks per pipeline stage (interleaved 1F1B)")
    ] = 1,
    recompute: Annotated[
        Literal["none", "selective", "blocks"] | None,
        typer.Option(
            help="activations that the backward pass computes again", show_default="train.recompute"
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="h100|h200|a100|cpu", help="estimate memory and time of a rank on this hardware"
        ),
    ] = None,
    bandwidth: Annotated[
        float | None,
        _Bandwidth(help="send bandwidth of a rank, to other machines", show_default="of the hardware"),
    ] = None,
    intra_node_bandwidth: Annotated[
        float | None,
        _Bandwidth(
            help="send bandwidth of a rank, within a machine",
            show_default="of the hardware, else --bandwidth",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None, _Ranks(help="number of ranks per machine", show_default="of the hardware, else 8")
    ] = None,
    show_details: Annotated[
        bool,
        typer.Option(
            "--details", help="print operations by part, bytes, caches and speeds, with their formulas"
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: operations, bytes, seconds")] = False,
) -> None:
    """Estimate the cost of a design before training: size, time, memory and expected quality.

    The time is that on this machine now. The quality is quoted from measurements on corpora of this size, if
    there are any. --details adds operations, bytes and formulas, in which B is the number of rows, S the
    tokens of a row, R the tokens of its source, H d_model, E d_embedding, F d_ff, V the vocabulary, A n_heads
    x head_dim, G n_kv_heads x head_dim. A missing text is not an error: the output lists what could not be
    determined.

    \b
    polyhead estimate recipes/multi30k-en-de.yaml data.root=path/to/multi30k
    polyhead estimate gpt2 model.n_kv_heads=4 --batch-size 8 --seq-len 512 --no-probe --details
    polyhead estimate gpt3-175b --batch-size 64 --data-parallel 8 --tensor-parallel 8 --bandwidth 25
    polyhead estimate gpt3-13b --batch-size 8 --shard 64 --recompute blocks --hardware h100 --no-probe
    """
    subject: Recipe | ModelConfig
    subject = (
        read_recipe(Path(design), changes) if _is_recipe(design) else _load_preset(design, changes or [])
    )
    from polyhead.cost.communication import ParallelLayout
    from polyhead.estimate.plan import estimate
    from polyhead.estimate.report import format_details, format_ranks, summarize

    layout = ParallelLayout(
        data_parallel, tensor_parallel, pipeline, micro_batches, bandwidth=bandwidth and bandwidth * 1e9,
        shard=shard, context_parallel=context_parallel, interleave=interleave,
        intra_node_bandwidth=intra_node_bandwidth and intra_node_bandwidth * 1e9,
        nproc_per_node=nproc_per_node,
    )  # fmt: skip
    has_layout = layout.ranks > 1 or micro_batches > 1
    result = estimate(
        subject, probe=probe, batch_size=batch_size, seq_len=seq_len, train_tokens=train_tokens,
        context_len=context_len, decode_batch=decode_batch or (1, 32),
        layout=layout if has_layout or hardware else None, hardware=hardware, recompute=recompute,
    )  # fmt: skip
    labeled = result if isinstance(subject, Recipe) else result._replace(name=design)
    if as_json:
        print(json.dumps(labeled.to_json(), indent=2, ensure_ascii=False))
        return
    more = list((format_details if show_details else format_ranks)(labeled))
    print("\n".join([*summarize(labeled), *([""] if more else []), *more]))


def _is_recipe(design: str) -> bool:
    if design in PRESETS:
        return False
    if Path(design).suffix in (".yaml", ".yml") or Path(design).is_file():
        return True
    if (recipe := Path(design) / "recipe.yaml").is_file():
        raise UserError(f"{design}: a directory, not a recipe; did you mean {str(recipe)!r}?")
    if (Path(design) / "config.json").is_file():
        raise UserError(
            f"{design} is a run without a recipe, so the training is unknown; polyhead params "
            f"{design} counts its parameters"
        )
    hint = did_you_mean(design, PRESETS) or did_you_mean_path(Path(design), "*.y*ml", [Path("recipes")])
    raise UserError(f"{design!r} is neither a recipe nor a preset{hint or '; polyhead params lists them'}")


def _load_preset(name: str, changes: list[str]) -> ModelConfig:
    """Return the config of a preset, with the vocabulary of its paper and the user's changes."""
    from pydantic import ValidationError

    from polyhead.config import yaml_io
    from polyhead.config.model import ModelSpec
    from polyhead.core.messages import from_validation_error

    size = PRESET_INFO[name].vocab_size if name in PRESET_INFO else DEFAULT_VOCAB_SIZE
    tree: dict[str, Any] = {"model": {"preset": name}, "tokenizer": {"vocab_size": size}}
    for path, value in yaml_io.parse_overrides(changes, Recipe):
        if path[0] != "model" and path != ["tokenizer", "vocab_size"]:
            raise UserError(
                f"{'.'.join(path)}: a preset supports only keys of model.... and tokenizer.vocab_size"
            )
        yaml_io.assign(tree, path, value, Recipe)
    try:
        return ModelSpec.model_validate(tree["model"]).with_vocabulary(tree["tokenizer"]["vocab_size"])
    except ValidationError as error:
        raise from_validation_error(error, ModelSpec, "model") from None

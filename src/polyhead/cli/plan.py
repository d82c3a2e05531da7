"""``polyhead plan``: what a design will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.errors import UserError, nearest
from polyhead.presets import PRESETS, PUBLISHED, VOCABULARY
from polyhead.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from polyhead.config import ModelConfig


def run(
    design: Annotated[
        str, typer.Argument(metavar="RECIPE|PRESET", help="a recipe, or a model of the literature")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="changes to the recipe, e.g. model.d_model=256; of a preset to its model",
        ),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe", help="time some updates and some decoding; without, nothing is run"
        ),
    ] = True,
    rows: Annotated[int | None, typer.Option(min=1, help="of a batch of a preset", show_default="1")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="tokens of a row of a preset", show_default="max_len")
    ] = None,
    tokens: Annotated[float | None, typer.Option(min=1, help="that a preset learns from, e.g. 300e9")] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="tokens that a decoding row has", show_default="data.max_len")
    ] = None,
    decode_rows: Annotated[
        list[int] | None,
        typer.Option(min=1, help="rows decoded together, once or more", show_default="1 and 32"),
    ] = None,
    data_parallel: Annotated[
        int, typer.Option(min=1, help="ranks that have the whole model and share the batch")
    ] = 1,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="ranks that share every layer")] = 1,
    pipeline: Annotated[int, typer.Option(min=1, help="stages of layers")] = 1,
    micro_batches: Annotated[int, typer.Option(min=1, help="pieces of a batch in a pipeline")] = 1,
    bandwidth: Annotated[
        float | None, typer.Option(min=0.001, metavar="GB/S", help="that a rank sends with")
    ] = None,
    in_detail: Annotated[
        bool,
        typer.Option(
            "--details", help="operations part by part, bytes, caches and speeds, with their formulas"
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: operations, bytes, seconds")] = False,
) -> None:
    """Say what a design will cost before it is trained: size, time on this machine now, memory, and the quality to expect.

    Quality is what was measured on corpora of this size, if there are any. --details adds operations, bytes and formulas;
    in these B are rows, S tokens of a row, R of its source, H d_model, E d_embedding, F d_ff, V the vocabulary,
    A n_heads x head_dim, G n_kv_heads x head_dim. Text that is not there is no mistake: what could not be known is said.

    \b
    polyhead plan recipes/multi30k-en-de.yaml data.root=path/to/multi30k
    polyhead plan gpt2 model.n_kv_heads=4 --rows 8 --length 512 --no-probe --details
    polyhead plan gpt3-175b --tokens 300e9 --data-parallel 8 --tensor-parallel 8 --pipeline 8 --rows 64 --micro-batches 64 --bandwidth 25
    """
    given: Recipe | ModelConfig
    given = load_recipe(Path(design), changes) if _is_file(design) else _preset(design, changes or [])
    from polyhead.analysis.cost.communication import Layout
    from polyhead.planning import plan
    from polyhead.planning.report import details, traffic
    from polyhead.planning.summary import summarize

    spread = data_parallel * tensor_parallel * pipeline > 1
    layout = Layout(
        data_parallel, tensor_parallel, pipeline, micro_batches, bandwidth=bandwidth and bandwidth * 1e9
    )
    made = plan(
        given, probe=probe, rows=rows, length=length, tokens=tokens, context=context, decode_rows=decode_rows or (1, 32),
        layout=layout if spread else None,
    )  # fmt: skip
    named = made if isinstance(given, Recipe) else made._replace(name=design)
    if as_json:
        print(json.dumps(named.to_json(), indent=2, ensure_ascii=False))
        return
    rest = list((details if in_detail else traffic)(named))
    print("\n".join([*summarize(named), *([""] if rest else []), *rest]))


def _is_file(design: str) -> bool:
    if design in PRESETS:
        return False
    if Path(design).suffix in (".yaml", ".yml") or Path(design).is_file():
        return True
    if (recipe := Path(design) / "recipe.yaml").is_file():
        raise UserError(f"{design}: a directory, not a recipe; did you mean {str(recipe)!r}?")
    if (Path(design) / "config.json").is_file():
        raise UserError(
            f"{design} is a run without a recipe, which says nothing of training; polyhead sizes {design} counts its parameters"
        )
    alike = [*PRESETS, *map(str, Path(design).parent.glob("*.y*ml"))]
    raise UserError(
        f"{design!r} is neither a recipe nor a preset{nearest(design, alike) or '; polyhead sizes lists them'}"
    )


def _preset(name: str, changes: list[str]) -> ModelConfig:
    """A model of the literature, with the vocabulary of its paper, and changes."""
    from pydantic import ValidationError

    from polyhead import document
    from polyhead.config import ModelSection
    from polyhead.errors import explain

    size = PUBLISHED[name].vocab_size if name in PUBLISHED else VOCABULARY
    tree: dict[str, Any] = {"model": {"preset": name}, "tokenizer": {"vocab_size": size}}
    for place, value in document.parse_overrides(changes, Recipe):
        if place[0] != "model" and place != ["tokenizer", "vocab_size"]:
            raise UserError(
                f"{'.'.join(place)}: a preset is a model alone; it takes model.... and tokenizer.vocab_size"
            )
        document.assign(tree, place, value, Recipe)
    try:
        return ModelSection.model_validate(tree["model"]).with_vocabulary(tree["tokenizer"]["vocab_size"])
    except ValidationError as error:
        raise explain(error, ModelSection, "model") from None

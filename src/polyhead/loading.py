"""Opening what was trained: a run directory, or a published checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import torch

from polyhead.calls import told
from polyhead.errors import UserError, show, unknown
from polyhead.fast.pack import WHOLE, can_pack, packed, product_of, replaced
from polyhead.generate.shortlist import Shortlist
from polyhead.hf.adapters import is_adapter
from polyhead.hf.hub import fetch, is_name, owner_of
from polyhead.hf.reading import model_type, open_checkpoint
from polyhead.models.build import model_class
from polyhead.nn.place import device_of
from polyhead.nn.weights import settled
from polyhead.places import nearest_path
from polyhead.recipe import load_recipe
from polyhead.run import Run
from polyhead.run_files import MODEL_TYPE, put_weights, read_config, read_family, read_generation
from polyhead.text.tokenizer import Tokenizer
from polyhead.together import together
from polyhead.undrawn import Undrawn

# of what is not rounded further
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16} | dict.fromkeys(WHOLE, torch.float32)


@told
def load(
    directory: str | Path | Sequence[str | Path],
    *,
    dtype: str = "fp32",
    fast: bool = False,
    device: str = "auto",
) -> Run:
    """Open a run directory, or a published checkpoint: its directory, or owner/name on a hub.

    Several of them become one run, which says what the mean of their probabilities says. Every way in which it
    cannot be one is a UserError of one line.

    ``dtype`` "bf16" halves the weights and is faster where the hardware multiplies bf16; ``fast`` lays the
    weights out for inference on this CPU, after which the model cannot be trained or saved. "int8" does so too, and
    rounds weights and what they are multiplied with to 8 bits: faster still, and nearly as good; "int4" weights to 4: half the
    bytes again, and not quite as good (docs/results.md).
    ``device`` is "cpu", "cuda", "cuda:1" and so on; "auto" a GPU where there is one, but the CPU for int8 and int4.
    """
    if not isinstance(directory, str | Path):
        listed = isinstance(directory, Iterable) and not isinstance(directory, Mapping)
        several = list(directory) if listed else []
        if not listed or not all(isinstance(one, str | Path) for one in several):
            raise UserError(
                f"load wants the directory of a run or owner/name on a hub, or a list of them, got {show(directory)}"
            )
        runs = [load(one, dtype=dtype, fast=fast, device=device) for one in several]
        return together(runs, [str(one) for one in several])
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    place = device_of("cpu" if dtype in WHOLE and device == "auto" else device)
    if dtype in WHOLE and place.type != "cpu":
        raise UserError(f"dtype {dtype} is for the CPU, not for {place}; give dtype bf16 there")
    if not Path(directory).is_dir() and is_name(str(directory)):
        directory = fetch(str(directory))
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(_no_run(directory))
    published = is_adapter(directory) or model_type(directory) not in (None, MODEL_TYPE)
    run = _published(directory) if published else _own(directory)
    run.directory = directory
    # what packing takes over stays where the file has it until then: for a large model there may be no room beside it
    if dtype in WHOLE:
        settled(run.model, but=replaced(run.model))
    else:
        packs = fast and can_pack() and place.type == "cpu"
        settled(run.model, DTYPES[dtype], replaced(run.model, DTYPES[dtype]) if packs else ())
        run.model = run.model.to(place, DTYPES[dtype])
    run.model.eval()
    if fast or dtype in WHOLE:
        packed(run.model, product_of(dtype))
    return run


def _no_run(path: Path) -> str:
    """What is wrong with a path that is no directory, and what to type in its place."""
    if path.suffix in (".yaml", ".yml") and path.is_file():
        trained = Path("runs") / path.stem
        way = (
            f"did you mean {str(trained)!r}?"
            if trained.is_dir()
            else f"train it first: polyhead train {path}"
        )
        return f"{path} is a recipe; wanted the directory of a run: {way}"
    if path.is_file():
        way = _run_of(path) or ", which comes before the files of text"
        return f"{path} is a file; wanted the directory of a run{way}"
    if any(map(str.isspace, str(path))):
        return f"no run directory {str(path)!r}; the run comes first, and a text after it"
    if owner := owner_of(path.name if path.parent == Path() else ""):
        return f"no run directory {str(path)!r}; did you mean {f'{owner}/{path.name}'!r} of the Hugging Face hub?"
    near = nearest_path(path, "*/", [Path("runs")])
    hub = "; one of the Hugging Face hub is named owner/name" if path.parent == Path() and not near else ""
    return f"no run directory {str(path)!r}{near or hub}"


def _run_of(path: Path) -> str:
    """The run that a file lies in."""
    return f"; did you mean {str(path.parent)!r}?" if (path.parent / "config.json").is_file() else ""


def _published(directory: Path) -> Run:
    model, tokenizer, generation, family = open_checkpoint(directory)
    run = Run(model, tokenizer, generation)
    run.family = family
    return run


def _own(directory: Path) -> Run:
    config = read_config(directory)
    tokenizer = Tokenizer.load(directory)
    with Undrawn():
        model = model_class(config)(config)
    recipe = (
        load_recipe(directory / "recipe.yaml", made=True) if (directory / "recipe.yaml").is_file() else None
    )
    put_weights(model, directory, tokenizer, recipe.train.adapt if recipe else None)
    run = Run(model, tokenizer, read_generation(directory), recipe)
    run.family = read_family(directory)
    run.shortlist = cache(partial(Shortlist.load, directory, config.vocab_size))
    return run

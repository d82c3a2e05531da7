"""Load a run directory or a published checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import torch

from polyhead.core.errors import UserError, format_value, is_command_line, unknown_name_error
from polyhead.core.output_paths import did_you_mean_path
from polyhead.core.strict_kwargs import strict_kwargs
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.hub import fetch_checkpoint, find_owner, is_repo_id
from polyhead.hf.load import load_checkpoint
from polyhead.hf.lora import is_adapter
from polyhead.hf.published_checkpoint import read_model_type
from polyhead.kernels.pack_model import (
    QUANTIZED_LINEARS,
    can_pack,
    pack_model,
    unused_weights,
)
from polyhead.models.build import model_class
from polyhead.nn.device import resolve_device
from polyhead.nn.init import SkipInit
from polyhead.nn.state import materialize
from polyhead.run.packed_weights import pack_run
from polyhead.run.run import Run
from polyhead.run.run_directory import (
    MODEL_TYPE,
    RunFiles,
    check_model_size,
    load_run_weights,
    read_run_manifest,
)
from polyhead.run.run_ensemble import ensemble_runs

# dtypes of the weights that are not quantized
LOAD_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16} | dict.fromkeys(
    QUANTIZED_LINEARS, torch.float32
)


@strict_kwargs
def load(
    directory: str | Path | Sequence[str | Path],
    *,
    dtype: str = "fp32",
    fast: bool = False,
    device: str = "auto",
    in_memory: bool = False,
) -> Run:
    """Load a run directory, or a published checkpoint: its directory, or owner/name on a hub.

    Several of them become one run, an ensemble, which averages their probabilities. Whatever cannot be loaded
    is a UserError of one line.

    ``dtype`` "bf16" halves the weights and is faster where the hardware multiplies bf16; ``fast`` packs the
    weights for inference on this CPU, after which the model cannot be trained or saved. "int8" packs them
    too, and quantizes weights and activations to 8 bits: faster still, and nearly as good; "int4" quantizes
    weights to 4: half the bytes again, and not quite as good (docs/results.md). The packed weights of a large
    run are kept in ``.packed`` of its directory, and memory-mapped or, with ``in_memory``, copied: opening
    takes longer, each token less. ``device`` is "cpu", "cuda", "cuda:1" and so on; "auto" is a GPU if there
    is one, but the CPU for int8 and int4.
    """
    if not isinstance(directory, str | Path):
        is_list = isinstance(directory, Iterable) and not isinstance(directory, Mapping)
        paths = list(directory) if is_list else []
        if not is_list or not all(isinstance(path, str | Path) for path in paths):
            raise UserError(
                "load expects a run directory or owner/name on a hub, or a list of them, got "
                f"{format_value(directory)}"
            )
        runs = [load(path, dtype=dtype, fast=fast, device=device, in_memory=in_memory) for path in paths]
        return ensemble_runs(runs, [str(path) for path in paths])
    if dtype not in LOAD_DTYPES:
        raise unknown_name_error("dtype", dtype, LOAD_DTYPES)
    torch_device = resolve_device("cpu" if dtype in QUANTIZED_LINEARS and device == "auto" else device)
    if dtype in QUANTIZED_LINEARS and torch_device.type != "cpu":
        raise UserError(f"dtype {dtype} is for the CPU, not for {torch_device}; use dtype bf16 there")
    if not Path(directory).is_dir() and is_repo_id(str(directory)):
        directory = fetch_checkpoint(str(directory))
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(not_a_run_message(directory))
    run = open_directory(directory)
    # packing copies these weights from the file: a large model may not fit into memory twice
    if dtype in QUANTIZED_LINEARS:
        materialize(run.model, exclude=unused_weights(run.model))
    else:
        packs = fast and can_pack() and torch_device.type == "cpu"
        materialize(
            run.model, LOAD_DTYPES[dtype], unused_weights(run.model, LOAD_DTYPES[dtype]) if packs else ()
        )
        run.model = run.model.to(torch_device, LOAD_DTYPES[dtype])
    run.model.eval()
    if dtype in QUANTIZED_LINEARS:
        pack_run(run.model, dtype, directory, run.weights_entry, in_memory)
    elif fast:
        pack_model(run.model)
    return run


def open_directory(directory: Path) -> Run:
    """Open a run or a published checkpoint; its weights are memory-mapped, and those of the files for good.

    A file that is replaced or removed later changes nothing, but they must not be modified.
    """
    files = CheckpointFiles(directory)
    if is_published(files):
        model, tokenizer, generation, family = load_checkpoint(files)
        run = Run(model, tokenizer, generation)
        run.family = family
    else:
        run = open_run(RunFiles.open(directory, read_run_manifest(directory)))
    run.directory = directory
    return run


def materialize_run(run: Run, device: torch.device) -> None:
    """Copy the memory-mapped weights of a run to a device, in fp32."""
    run.replace_model(materialize(run.model).to(device))


def is_published(files: CheckpointFiles) -> bool:
    """Whether a directory has a published checkpoint or an adapter, and not a run."""
    return is_adapter(files) or read_model_type(files) not in (None, MODEL_TYPE)


def not_a_run_message(path: Path) -> str:
    """The error message for a path that is no directory, with what to type in its place."""
    if path.suffix in (".yaml", ".yml") and path.is_file():
        run_path, hint = Path("runs") / path.stem, f"train it first: polyhead train {path}"
        if run_path.is_dir():
            hint = f"did you mean {str(run_path)!r}?"
        return f"{path} is a recipe; expected a run directory: {hint}"
    if path.is_file():
        hint = ", which comes before any text files" if is_command_line() else ""
        if (path.parent / "config.json").is_file():
            hint = f"; did you mean {str(path.parent)!r}?"
        return f"{path} is a file; expected a run directory{hint}"
    if path.suffix in (".yaml", ".yml"):
        return f"{path}: no such file{did_you_mean_path(path, '*.y*ml', [Path('recipes')])}"
    if any(map(str.isspace, str(path))) and is_command_line():
        return f"no run directory {str(path)!r}; the run must come first, then the text"
    if owner := find_owner(path.name if path.parent == Path() else ""):
        return (
            f"no run directory {str(path)!r}; did you mean {f'{owner}/{path.name}'!r} of the Hugging "
            "Face hub?"
        )
    near = did_you_mean_path(path, "*/", [Path("runs")])
    hub = "; a run on the Hugging Face hub is named owner/name" if path.parent == Path() and not near else ""
    return f"no run directory {str(path)!r}{near or hub}"


def open_run(files: RunFiles) -> Run:
    """Build the model of a run, with memory-mapped weights."""
    check_model_size(files)
    config = files.config.model
    with SkipInit():
        model = model_class(config)(config)
    load_run_weights(model, files)
    run = Run(model, files.tokenizer, files.generation, files.recipe)
    run.weights_entry = files.weights_entry
    run.family, run.saved_prompt_template = files.config.family, files.config.prompt_template
    run.get_shortlist = cache(partial(Shortlist.load, files.directory, config.vocab_size))
    return run

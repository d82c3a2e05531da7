"""``polyhead export``: convert a run to a checkpoint for other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.output_paths import check_new_directory

if TYPE_CHECKING:
    from polyhead.run.run import Run

DEFAULT_SHARD_SIZE = "5GB"
WriteExport = Callable[[Path], str]
"""Fills a directory and returns a description; unsupported models were rejected before."""


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained run")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="output directory of the checkpoint")],
    to: Annotated[
        str,
        typer.Option(
            help="format; hf: a checkpoint for from_pretrained of transformers; onnx: graphs for "
            "onnxruntime; ctranslate2; gguf: a file for llama.cpp"
        ),
    ] = "hf",
    family: Annotated[
        str | None,
        typer.Option(
            help="hf: model_type to write, e.g. gpt2",
            show_default="that of the imported checkpoint, otherwise the first that fits",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="dtype of the weights: fp32, fp16, bf16 (not onnx), int8 (not hf; gguf: Q8_0), "
            "int8_float32 (ctranslate2), int4 (gguf: Q4_0)"
        ),
    ] = "fp32",
    shard_size: Annotated[
        str | None,
        typer.Option(
            help="hf: maximum size of the weights in one file, e.g. 500MB", show_default=DEFAULT_SHARD_SIZE
        ),
    ] = None,
) -> None:
    """Export a model for other tools: weights, config, tokenizer and generation settings.

    hf: a Hugging Face checkpoint; if no published model family has the parts of the run, it is rejected, and
    the message names the part that has no equivalent. onnx: model.onnx, or encoder_model.onnx and
    decoder_model.onnx. ctranslate2: a translation model, a language model, or an encoder for embeddings.
    gguf: a language model for llama.cpp and tools built on it. The last three require the extra 'export', and
    verify what they wrote (docs/export.md).

    \b
    polyhead export runs/shakespeare shakespeare-hf --to hf
    polyhead export runs/large large-hf --dtype bf16 --shard-size 2GB
    polyhead export runs/shakespeare shakespeare-onnx --to onnx --dtype int8
    polyhead export runs/multi30k multi30k-ct2 --to ctranslate2 --dtype int8
    polyhead export runs/shakespeare shakespeare-gguf --to gguf --dtype fp16
    """
    if to not in FORMATS:
        raise unknown_name_error("format", to, FORMATS)
    hf_only = {"--family": family, "--shard-size": shard_size}
    specified = {name: value for name, value in hf_only.items() if value is not None}
    if to != "hf" and specified:
        raise UserError(
            f"{' and '.join(specified)} belong{'' if len(specified) > 1 else 's'} to --to hf, not to {to}"
        )
    check_new_directory(out, "the checkpoint")
    from polyhead.core.atomic_io import atomic_directory
    from polyhead.models import ReplacedTokenDetector
    from polyhead.run.load import load

    loaded, note = load(directory, device="cpu"), ""
    if isinstance(loaded.model, ReplacedTokenDetector):
        loaded.model = loaded.model.encoder_only()
        note = "; without its generator and the detection head"
    elif to == "ctranslate2" and (
        loaded.config.labels or (loaded.kind == "encoder" and loaded.config.lm_head)
    ):
        note = "; without its output layer, which CTranslate2 does not have"
    hf_options = {"family": family, "shard_size": shard_size}
    with _name_formats(loaded, to):
        fill = FORMATS[to](loaded, dtype, **(hf_options if to == "hf" else {}))
    with atomic_directory(out) as path:
        description = fill(path)
    print(f"{out}: {description}{note}")


@contextmanager
def _name_formats(run: Run, to: str) -> Iterator[None]:
    """If the model cannot be exported to this format, the error names the formats that it can be."""
    from polyhead.export.targets import find_obstacles

    try:
        yield
    except UserError as error:
        obstacles = find_obstacles(run.config, run.tokenizer, run.family)
        if not obstacles[to] or obstacles[to] not in str(error):
            raise
        formats = ", ".join(name for name, obstacle in obstacles.items() if not obstacle) or "no format"
        raise UserError(f"{error}; this run can be exported to: {formats}") from None


def _prepare_hf(source_run: Run, dtype: str, family: str | None, shard_size: str | None) -> WriteExport:
    from polyhead.checkpoint.safetensors_io import write_safetensors
    from polyhead.core.atomic_io import atomic_writer
    from polyhead.export.sidecar_files import save_tokenizer
    from polyhead.hf.checkpoint_files import INDEX_FILE
    from polyhead.hf.save import build_checkpoint, build_index, parse_size, split_shards
    from polyhead.run.run_directory import write_json_atomic

    max_bytes = parse_size(shard_size or DEFAULT_SHARD_SIZE)
    content = build_checkpoint(
        source_run.model, source_run.tokenizer, source_run.generation, family, dtype, source_run.family
    )
    parts = split_shards(content.tensors, max_bytes)

    def write_files(directory: Path) -> str:
        write_json_atomic(directory / "config.json", content.config)
        if content.generation:
            write_json_atomic(directory / "generation_config.json", content.generation)
        for name, value in content.extra_files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            write_json_atomic(directory / name, value)
        save_tokenizer(source_run, directory)
        for name, tensors in (parts | content.extra_tensors).items():
            with atomic_writer(directory / name) as out:
                write_safetensors(out, tensors, {"format": "pt"})
        if len(parts) > 1:
            write_json_atomic(directory / INDEX_FILE, build_index(parts))
        files = f" in {len(parts)} files" if len(parts) > 1 else ""
        return f"a checkpoint of the family {content.family!r}{files}"

    return write_files


def _prepare_onnx(source_run: Run, dtype: str) -> WriteExport:
    from polyhead.export.onnx import check_onnx, write_onnx
    from polyhead.export.sidecar_files import write_sidecar_files

    check_onnx(source_run.model, dtype)

    def write_files(directory: Path) -> str:
        write_sidecar_files(source_run, directory)
        return f"{' and '.join(write_onnx(source_run.model, directory, dtype))} in {dtype}"

    return write_files


def _prepare_ctranslate2(source_run: Run, dtype: str) -> WriteExport:
    from polyhead.export.ctranslate2 import check_ct2, write_ct2
    from polyhead.export.sidecar_files import save_tokenizer

    check_ct2(source_run.model, dtype)

    def write_files(directory: Path) -> str:
        save_tokenizer(source_run, directory)
        return (
            f"{write_ct2(source_run.model, source_run.tokenizer, directory, dtype)} for CTranslate2 in "
            f"{dtype}"
        )

    return write_files


def _prepare_gguf(source_run: Run, dtype: str) -> WriteExport:
    from polyhead.export.gguf import check_gguf, write_gguf

    check_gguf(source_run, dtype)
    return lambda place: write_gguf(source_run, place, dtype)


FORMATS: dict[str, Callable[..., WriteExport]] = {
    "hf": _prepare_hf,
    "onnx": _prepare_onnx,
    "ctranslate2": _prepare_ctranslate2,
    "gguf": _prepare_gguf,
}

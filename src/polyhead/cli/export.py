"""``polyhead export``: a run as a checkpoint that other tools open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.errors import UserError, unknown
from polyhead.places import new_directory

if TYPE_CHECKING:
    from polyhead.run import Run

LARGEST = "5GB"
Fill = Callable[[Path], str]
"""Fills a directory, and says what is in it; what cannot be written at all was refused before."""


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory of the checkpoint")],
    to: Annotated[
        str,
        typer.Option(
            help="hf: what from_pretrained of transformers opens; onnx: graphs for onnxruntime; ctranslate2; gguf: a file for llama.cpp"
        ),
    ] = "hf",
    family: Annotated[
        str | None,
        typer.Option(
            help="hf: model_type to write, e.g. gpt2",
            show_default="that of the checkpoint it came from, else the first that fits",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="of the weights: fp32, fp16, bf16 (not onnx), int8 (not hf; gguf: Q8_0), int8_float32 (ctranslate2), int4 (gguf: Q4_0)"
        ),
    ] = "fp32",
    shard_size: Annotated[
        str | None, typer.Option(help="hf: most of the weights in one file, e.g. 500MB", show_default=LARGEST)
    ] = None,
) -> None:
    """Write a model for other tools: weights, config, tokenizer and settings of decoding.

    hf: a Hugging Face checkpoint. A run whose parts no published family has is refused, and the message names the part
    in the way. onnx: model.onnx, or encoder_model.onnx and decoder_model.onnx. ctranslate2: a translator, a language model,
    or the vectors of an encoder. gguf: a language model for llama.cpp and what is built on it. The last three need
    the extra 'export', and prove what they wrote (docs/export.md).

    \b
    polyhead export runs/shakespeare shakespeare-hf --to hf
    polyhead export runs/large large-hf --dtype bf16 --shard-size 2GB
    polyhead export runs/shakespeare shakespeare-onnx --to onnx --dtype int8
    polyhead export runs/multi30k multi30k-ct2 --to ctranslate2 --dtype int8
    polyhead export runs/shakespeare shakespeare-gguf --to gguf --dtype fp16
    """
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    typed = {"--family": family, "--shard-size": shard_size}
    given = {name: value for name, value in typed.items() if value is not None}
    if to != "hf" and given:
        raise UserError(
            f"{' and '.join(given)} belong{'' if len(given) > 1 else 's'} to --to hf, not to {to}"
        )
    new_directory(out, "the checkpoint")
    from polyhead.files import whole_directory
    from polyhead.loading import load
    from polyhead.models import Detector

    made, left = load(directory, device="cpu"), ""
    if isinstance(made.model, Detector):
        made.model, left = made.model.bare(), "; its generator, and what tells replaced tokens, stay behind"
    of_hf = {"family": family, "shard_size": shard_size}
    fill = FORMATS[to](made, dtype, **(of_hf if to == "hf" else {}))
    with whole_directory(out) as place:
        said = fill(place)
    print(f"{out}: {said}{left}")


def _hf(made: Run, dtype: str, family: str | None, shard_size: str | None) -> Fill:
    from polyhead.export.description import save_tokenizer
    from polyhead.files import replacing
    from polyhead.hf.files import INDEX
    from polyhead.hf.shards import bytes_of, index_of, shards
    from polyhead.hf.writing import published
    from polyhead.run_files import write_json
    from polyhead.train.tensors import write

    most = bytes_of(shard_size or LARGEST)
    content = published(made.model, made.tokenizer, made.generation, family, dtype, made.family)
    parts = shards(content.tensors, most)

    def fill(place: Path) -> str:
        write_json(place / "config.json", content.config)
        if content.generation:
            write_json(place / "generation_config.json", content.generation)
        for name, value in content.beside.items():
            (place / name).parent.mkdir(exist_ok=True)
            write_json(place / name, value)
        save_tokenizer(made, place, filled=made.config.kind == "decoder")
        for name, tensors in (parts | content.maps).items():
            with replacing(place / name) as out:
                write(out, tensors, {"format": "pt"})
        if len(parts) > 1:
            write_json(place / INDEX, index_of(parts))
        files = f" in {len(parts)} files" if len(parts) > 1 else ""
        return f"a checkpoint of the family {content.family!r}{files}"

    return fill


def _onnx(made: Run, dtype: str) -> Fill:
    from polyhead.export.description import describe
    from polyhead.export.onnx import check, write

    check(made.model, dtype)

    def fill(place: Path) -> str:
        describe(made, place)
        return f"{' and '.join(write(made.model, place, dtype))} in {dtype}"

    return fill


def _ctranslate2(made: Run, dtype: str) -> Fill:
    from polyhead.export.ctranslate2 import check, write
    from polyhead.export.description import save_tokenizer

    check(made.model, dtype)

    def fill(place: Path) -> str:
        save_tokenizer(made, place)
        return f"{write(made.model, made.tokenizer, place, dtype)} for CTranslate2 in {dtype}"

    return fill


def _gguf(made: Run, dtype: str) -> Fill:
    from polyhead.export.gguf import check, write

    check(made, dtype)
    return lambda place: write(made, place, dtype)


FORMATS: dict[str, Callable[..., Fill]] = {
    "hf": _hf,
    "onnx": _onnx,
    "ctranslate2": _ctranslate2,
    "gguf": _gguf,
}

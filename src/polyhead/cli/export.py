"""``polyhead export``: a run as a checkpoint that other tools open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyhead.errors import UserError, unknown

FORMATS = ("hf",)


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory of the checkpoint")],
    to: Annotated[str, typer.Option(help="hf: what from_pretrained of transformers opens")] = "hf",
    family: Annotated[
        str | None, typer.Option(help="model_type to write, e.g. gpt2", show_default="the first that fits")
    ] = None,
    dtype: Annotated[str, typer.Option(help="of the weights: fp32, bf16 or fp16")] = "fp32",
    shard_size: Annotated[str, typer.Option(help="most of the weights in one file, e.g. 500MB")] = "5GB",
) -> None:
    """Write a model as a Hugging Face checkpoint: config, weights, tokenizer and settings of decoding.

    A run whose parts no published family has is refused, and the message names the part in the way.

    \b
    polyhead export runs/shakespeare shakespeare-hf --to hf
    polyhead export runs/large large-hf --dtype bf16 --shard-size 2GB
    """
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty; choose another place for the checkpoint")
    from polyhead.hf.files import INDEX
    from polyhead.hf.shards import bytes_of, index_of, shards
    from polyhead.hf.writing import published
    from polyhead.loading import load
    from polyhead.run_files import weights_file, write_json
    from polyhead.train.files import replace_file, whole_directory

    most = bytes_of(shard_size)
    made = load(directory)
    content = published(made.model, made.tokenizer, made.generation, family, dtype)
    tokenizer = made.tokenizer.for_encoders() if made.config.kind == "encoder" else made.tokenizer
    parts = shards(content.tensors, most)
    with whole_directory(out) as place:
        write_json(place / "config.json", content.config)
        if content.generation:
            write_json(place / "generation_config.json", content.generation)
        tokenizer.save(place, segments=made.config.segments > 1, template=content.template)
        for name, tensors in parts.items():
            replace_file(place / name, weights_file(tensors, {"format": "pt"}))
        if len(parts) > 1:
            write_json(place / INDEX, index_of(parts))
    files = f" in {len(parts)} files" if len(parts) > 1 else ""
    print(f"{out}: a checkpoint of the family {content.family!r}{files}")

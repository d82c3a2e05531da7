"""What stands beside exported weights: configuration, settings of decoding and tokenizer."""

from __future__ import annotations

from pathlib import Path

from polyhead.errors import UserError
from polyhead.generate.frame import frame
from polyhead.hf.writing import published
from polyhead.run import Run
from polyhead.run_files import write_json
from polyhead.text.chat.recognise import template_of
from polyhead.text.masks import hiding
from polyhead.text.tokenizer import Tokenizer


def describe(run: Run, directory: Path) -> None:
    """Write them in the words of a published family where one has these parts, else as a run directory has them."""
    try:
        content = published(run.model, run.tokenizer, run.generation, origin=run.family)
    except UserError:
        run.save_description(directory)
    else:
        write_json(directory / "config.json", content.config)
        if content.generation:
            write_json(directory / "generation_config.json", content.generation)
    save_tokenizer(run, directory)


def save_tokenizer(run: Run, directory: Path, filled: bool = False) -> None:
    """The tokenizer as other tools read it: what stands around a text and how it converses are in its files.

    ``filled``: the end of a text also fills rows where no token is for that.
    """
    template = template_of(run.generation.chat) if run.generation.chat else ""
    encoder = run.config.kind == "encoder"
    reach = (run.generation.max_text_len if encoder else None) or run.config.max_len
    _ruled(run).save(
        directory, segments=run.config.segments > 1, template=template, reach=reach, filled=filled
    )


def _ruled(run: Run) -> Tokenizer:
    """The run's tokenizer, whose rules put around a text what the run has learned with it; published ones are as they came."""
    tokenizer = hiding(run.tokenizer) if run.recipe else run.tokenizer
    if run.config.kind == "encoder-decoder":
        return tokenizer.framed(tokenizer.sides.before, tokenizer.sides.after)
    if run.config.kind == "encoder" and not run.config.causal and not tokenizer.begin:
        return tokenizer.framed([tokenizer.bos_id], [tokenizer.eos_id])
    if run.config.kind == "decoder" and run.recipe:
        about = frame(run.recipe, tokenizer)
        return tokenizer.framed(about.begin if about.always else [], [])
    return tokenizer

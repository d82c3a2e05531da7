"""Write the files next to exported weights: config, generation settings and tokenizer."""

from __future__ import annotations

from pathlib import Path

from polyhead.chat.detect_template import build_template
from polyhead.core.errors import UserError
from polyhead.hf.save import build_checkpoint
from polyhead.run.run import Run
from polyhead.run.run_directory import write_json_atomic
from polyhead.tokenizers.mask_tokens import with_lstrip_masks
from polyhead.tokenizers.tokenizer import Tokenizer


def write_sidecar_files(run: Run, directory: Path) -> None:
    """Write config, generation settings and tokenizer, as a Hugging Face family if one has these parts, else
    as a run directory.
    """
    try:
        content = build_checkpoint(run.model, run.tokenizer, run.generation, origin=run.family)
    except UserError:
        run.save_config_files(directory)
    else:
        write_json_atomic(directory / "config.json", content.config)
        if content.generation:
            write_json_atomic(directory / "generation_config.json", content.generation)
    save_tokenizer(run, directory)


def save_tokenizer(run: Run, directory: Path) -> None:
    """Save the tokenizer for other tools, including its template and chat template."""
    template = build_template(run.generation.chat) if run.generation.chat else ""
    encoder = run.config.kind == "encoder"
    reach = (run.generation.embed_max_len if encoder else None) or run.config.max_len
    _with_post_processor(run).save(
        directory, has_segments=run.config.n_segments > 1, chat_template=template, max_len=reach
    )


def _with_post_processor(run: Run) -> Tokenizer:
    """Return the run's tokenizer with the template the model was trained with; that of a checkpoint is
    unchanged.
    """
    tokenizer = with_lstrip_masks(run.tokenizer) if run.recipe else run.tokenizer
    if run.config.kind == "encoder-decoder":
        return tokenizer.with_template(
            tokenizer.seq2seq_template.source_prefix, tokenizer.seq2seq_template.source_suffix
        )
    if run.config.kind == "encoder" and not run.config.causal and not tokenizer.prefix_ids:
        return tokenizer.with_template([tokenizer.bos_id], [tokenizer.eos_id])
    if run.config.kind == "decoder" and run.recipe:
        template = run.prompt_template
        return tokenizer.with_template(template.prefix_ids if template.always_add_prefix else [], [])
    return tokenizer

"""``polyhead import``: convert a published checkpoint to a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.cli.options import ChatTemplateOption, SourceLang, TargetLang, read_chat_template
from polyhead.core.errors import UserError
from polyhead.core.output_paths import check_new_directory


def run(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="path of a Hugging Face checkpoint or of a PEFT adapter, or owner/name on the "
            "Hugging Face hub",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="output directory of the new run")],
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    chat_template: ChatTemplateOption = None,
) -> None:
    """Convert a published checkpoint to a run: config, weights (fp32), tokenizer, generation settings.

    Only JSON and safetensors are read. The only code of a checkpoint that is run is its chat template, in a
    sandbox. Language models: gpt2, llama,
    mistral, qwen2, qwen3, mixtral, qwen3_moe, phi, phi3, gemma, gemma2, gemma3_text, smollm3, olmo2, olmo3,
    exaone4, glm, glm4, cohere, cohere2, ernie4_5, arcee, granite, granitemoe, nanochat, seed_oss, helium,
    gpt_bigcode, starcoder2, stablelm, falcon, gptj, gpt_neo, gpt_neox, opt, bloom, mpt. Encoders: bert,
    roberta, xlm-roberta, camembert, mpnet, distilbert, albert, electra, deberta-v2, modernbert, nomic_bert,
    gte, eurobert. Encoder-decoders: t5, mt5, bart, mbart, pegasus, marian, m2m_100,
    encoder-decoder (bert with bert or gpt2, roberta with roberta).

    \b
    polyhead import openai-community/gpt2 runs/gpt2
    polyhead generate runs/gpt2 "The king of"
    polyhead import Helsinki-NLP/opus-mt-en-ROMANCE runs/en-fr --target-lang fr
    """
    if Path(directory).is_file():
        raise UserError(
            f"{directory} is a file; expected the directory of a checkpoint, or owner/name on the Hugging "
            "Face hub"
        )
    check_new_directory(out, "the new run")
    from polyhead.core.atomic_io import atomic_directory
    from polyhead.run.load import load
    from polyhead.tokenizers.languages import with_languages

    settings: dict[str, Any] = {}
    read_chat_template(chat_template, settings)
    loaded = load(directory, device="cpu")
    if settings:
        if loaded.config.kind != "decoder":
            raise UserError(
                f"--chat-template is for language models; {directory} is of kind {loaded.config.kind!r}"
            )
        loaded.generation = loaded.generation.model_copy(update=settings)
    if source_lang or target_lang:
        if loaded.config.kind != "encoder-decoder":
            raise UserError(
                f"--source-lang and --target-lang are for translation models; {directory} is of "
                f"kind {loaded.config.kind!r}"
            )
        template = with_languages(loaded.tokenizer, source_lang, target_lang)
        loaded.tokenizer = loaded.tokenizer.with_seq2seq_template(template)
    with atomic_directory(out) as path:
        loaded.save(path, f"# {Path(directory).name}\n\nCreated with `polyhead import`.\n")
    parameters = sum(p.numel() for p in loaded.model.parameters())
    print(f"{out}: {parameters:,} parameters, {loaded.tokenizer.vocab_size:,} tokens")

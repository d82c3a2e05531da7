"""``polyhead import``: a published checkpoint as a run directory of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.options import SourceLang, TargetLang
from polyhead.errors import UserError
from polyhead.places import new_directory


def run(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="directory of a Hugging Face checkpoint or of an adapter of PEFT, or owner/name on its hub",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory of the new run")],
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
) -> None:
    """Make a run directory of a published checkpoint: its config, weights (fp32), tokenizer and settings of decoding.

    Only JSON and safetensors are read; nothing of a checkpoint is executed. Language models: gpt2, llama, mistral, qwen2,
    qwen3, mixtral, qwen3_moe, phi, phi3, gemma, gemma2, gemma3_text, smollm3, olmo2, olmo3, exaone4, glm, glm4, cohere, cohere2, ernie4_5, arcee,
    granite, granitemoe, nanochat, seed_oss, helium, gpt_bigcode, starcoder2, stablelm, falcon, gptj, gpt_neo, gpt_neox, opt, bloom, mpt. Encoders: bert, roberta, xlm-roberta,
    camembert, mpnet, distilbert, albert, electra, deberta-v2, modernbert, nomic_bert, gte, eurobert. Encoder-decoders: t5, mt5,
    bart, mbart, pegasus, marian, m2m_100.

    \b
    polyhead import openai-community/gpt2 runs/gpt2
    polyhead generate runs/gpt2 "The king of"
    polyhead import Helsinki-NLP/opus-mt-en-ROMANCE runs/en-fr --target-lang fr
    """
    new_directory(out, "the new run")
    from polyhead.files import whole_directory
    from polyhead.loading import load

    made = load(directory, device="cpu")
    if source_lang or target_lang:
        if made.config.kind != "encoder-decoder":
            raise UserError(
                f"--source-lang and --target-lang are for translators; {directory} is of kind {made.config.kind!r}"
            )
        made.tokenizer = made.tokenizer.between(source_lang, target_lang)
    with whole_directory(out) as place:
        made.save(place, f"# {Path(directory).name}\n\nMade with `polyhead import`.\n")
    parameters = sum(p.numel() for p in made.model.parameters())
    print(f"{out}: {parameters:,} parameters, {made.tokenizer.vocab_size:,} tokens")

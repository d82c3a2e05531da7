"""Marian and Pegasus: BART with sinusoidal positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import ConfigField, ModelFields, constant, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bart import BODY, EMBEDDING, SHARED_EMBEDDING, TIED, bart_keys
from polyhead.hf.families.bart import TABLE as BART
from polyhead.hf.family import FAMILY, ModelFamily, TokenizerFactory
from polyhead.hf.tokenizers.spm import build_tokenizer, read_spm_model, read_vocab
from polyhead.hf.weight_map import weight
from polyhead.nn.position.absolute import sinusoids
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS, TARGET_LANGUAGE_TOKEN, UNK_TOKEN
from polyhead.tokenizers.tokenizer import Tokenizer


# Marian (Junczys-Dowmunt et al., 2018), the format of the OPUS-MT models.
def _read_vocabulary_sharing(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read whether both sides share the embeddings; they always share the vocabulary."""
    reader.require("decoder_vocab_size", fields["vocab_size"])
    is_untied = not reader.get_bool("share_encoder_decoder_embeddings", True)
    return {"tie_embeddings": "target"} if is_untied and fields["tie_embeddings"] == "all" else {}


def _write_vocabulary_sharing(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_vocabulary_sharing``."""
    return {
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
    }


KEYS = (
    *bart_keys(norm_first=False),
    constant(position={"name": "sinusoidal", "layout": "halves"}),
    ConfigField(_read_vocabulary_sharing, _write_vocabulary_sharing),
)


def _load_tokenizer(files: CheckpointFiles) -> TokenizerFactory:
    """Build one tokenizer for sources and one for translations; vocab.json has the ids of both.

    Models with several target languages have a token for each, such as ``>>fra<<``, which begins a source.
    """
    path = files.directory / "tokenizer_config.json"
    if (files.read_json(path.name) or {}).get("separate_vocabs"):
        raise UserError(
            f"{path}: separate_vocabs is true, expected false: only a shared vocabulary is supported, "
            "without target_vocab.json"
        )
    ids = read_vocab(files)
    specials = [token for token in ids if token in SPECIAL_TOKENS or TARGET_LANGUAGE_TOKEN.fullmatch(token)]
    source, target = (
        build_tokenizer(read_spm_model(files, name), ids, specials) for name in ("source.spm", "target.spm")
    )
    return lambda roles: Tokenizer(source, roles, target_tokenizer=Tokenizer(target, roles))


# unless all embeddings are tied, config.json states no sharing and the files hold only those of encoder and
# decoder
TABLE = (*weight(SHARED_EMBEDDING, EMBEDDING, condition=lambda config: config.tie_embeddings == "all"), *BODY)
# sinusoids of older files, and an embedding that no code reads
BUFFERS = r"model\.((en|de)coder\.embed_positions|shared)\.weight"
FAMILY.register("marian")(
    ModelFamily(
        {"Seq2Seq": "MarianMTModel"},
        KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        special_tokens={"eos_token": "</s>", "pad_token": "<pad>", "unk_token": UNK_TOKEN},
        load_legacy_tokenizer=_load_tokenizer,
    )
)


# Pegasus (Zhang et al., 2020): BART with pre-norm and sinusoids in halves, which are also in its files.
PEGASUS_KEYS = (
    require("do_blenderbot_90_layernorm", False),
    *bart_keys(norm_first=True),
    constant(position={"name": "sinusoidal", "layout": "halves"}),
)


def _generate_positions(config: ModelConfig) -> dict[str, Tensor]:
    """Return the sinusoids of both sides, which other tools read from the files."""
    names = (f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    return {name: sinusoids(config.max_len, config.d_model, layout="halves") for name in names}


FAMILY.register("pegasus")(
    ModelFamily(
        {"Seq2Seq": "PegasusForConditionalGeneration"},
        PEGASUS_KEYS,
        BART,
        "model.",
        BUFFERS,
        TIED,
        generate_tensors=_generate_positions,
    )
)

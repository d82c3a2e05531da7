"""A model in the format of CTranslate2, an engine for inference with its own idea of what a Transformer is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from torch import Tensor

from polyhead.errors import UserError, unknown
from polyhead.export.ct2_limits import in_the_way
from polyhead.export.ct2_specs import epsilon, pooler_of, spec_of
from polyhead.models import CausalLM, Model, Seq2Seq
from polyhead.text.tokenizer import Tokenizer

DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
    "int8_float32": "int8_float32",
}
# how far off it may be, of the spread of what the model says: in fp32, and with rounded weights
CLOSE = (
    1e-3,
    0.2,
)


def check(model: Model, dtype: str) -> None:
    """A UserError names what CTranslate2 has no words for, or a dtype that is none."""
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    found = in_the_way(model.config)
    if found:
        raise UserError(f"CTranslate2 has no model of these parts: {'; '.join(found)}")


@torch.no_grad()
def write(model: Model, tokenizer: Tokenizer, directory: Path, dtype: str = "fp32") -> str:
    """Write model.bin, its vocabulary and its config into a directory; what was written, in a few words."""
    check(model, dtype)
    model = model.eval()
    spec, tokens = spec_of(model), vocabulary(model, tokenizer)
    config = spec.config
    config.layer_norm_epsilon = epsilon(model.config)
    for role in ("unk_token", "bos_token", "eos_token"):
        found = tokenizer.ids.get(role)
        setattr(config, role, "" if found is None else tokens[found])
    if isinstance(model, Seq2Seq):
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)
        config.decoder_start_token = tokens[tokenizer.sides.start]
    else:
        spec.register_vocabulary(tokens)
    spec.validate()
    spec.optimize(quantization=DTYPES[dtype])
    spec.save(str(directory))
    _prove(model, tokenizer, tokens, directory, CLOSE[dtype != "fp32"])
    if isinstance(model, Seq2Seq):
        return "a translator"
    if isinstance(model, CausalLM):
        return "a language model"
    return "an encoder" if pooler_of(model) is None else "an encoder and its pooled vector"


def vocabulary(model: Model, tokenizer: Tokenizer) -> list[str]:
    """A name for each row of the embedding, each its own; rows beyond the tokenizer have names that no text has."""
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    names += [f"<beyond {i}>" for i in range(len(names), model.config.vocab_size)]
    if len(set(names)) < len(names):
        raise UserError(
            "CTranslate2 finds tokens by their names, and two tokens of this vocabulary have one name"
        )
    return names


def _prove(model: Model, tokenizer: Tokenizer, tokens: list[str], directory: Path, close: float) -> None:
    """Ask what was written about random texts; a UserError where it says anything else than the model."""
    ids = torch.randint(len(tokens), (2, max(1, min(7, model.config.max_len - 2))))
    if isinstance(model, Seq2Seq):
        wanted, found = _scores(model, ids, tokenizer, tokens, directory)
    elif isinstance(model, CausalLM):
        generator = ctranslate2.Generator(str(directory), compute_type="float32")
        wanted, found = model(ids), _tensor(generator.forward_batch(ids.tolist()))
    else:
        encoder = ctranslate2.Encoder(str(directory), compute_type="float32")
        wanted, found = model.encoder(ids), _tensor(encoder.forward_batch(ids.tolist()).last_hidden_state)
    off = (found - wanted).square().mean().sqrt() / wanted.std().clamp(min=1e-3)
    if not off < close:
        raise UserError(
            f"CTranslate2 says something else than this model: {off:.2g} of the spread of its numbers"
        )


def _scores(
    model: Seq2Seq, ids: Tensor, tokenizer: Tokenizer, tokens: list[str], directory: Path
) -> tuple[Tensor, Tensor]:
    """log p of each token of random targets: here, and there."""
    translator = ctranslate2.Translator(str(directory), compute_type="float32")
    sides = tokenizer.sides
    names = [[tokens[i] for i in row] for row in ids.tolist()]
    said = translator.score_batch(names, names)
    edges = [torch.full((len(ids), 1), token) for token in (sides.start, sides.end)]
    log_p = model(ids, torch.cat([edges[0], ids], 1)).log_softmax(-1)
    wanted = log_p.gather(2, torch.cat([ids, edges[1]], 1)[:, :, None])[:, :, 0]
    return wanted, torch.tensor([result.log_probs for result in said])


def _tensor(view: Any) -> Tensor:
    return torch.from_numpy(np.array(view))

"""Export a model to the format of CTranslate2, an inference engine for Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import UserError, unknown_name_error
from polyhead.export.ct2_specs import build_spec, find_pooler, norm_epsilon
from polyhead.export.targets import ct2_unsupported
from polyhead.models import CausalLM, Model, Seq2Seq
from polyhead.tokenizers.tokenizer import Tokenizer

_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
    "int8_float32": "int8_float32",
}
# maximum RMS error relative to the standard deviation of the outputs: in fp32, and with rounded weights
_TOLERANCES = (1e-3, 0.2)


def check_ct2(model: Model, dtype: str) -> None:
    """Raise a UserError for parts that CTranslate2 does not support or an unknown dtype."""
    if dtype not in _DTYPES:
        raise unknown_name_error("dtype", dtype, _DTYPES)
    obstacles = ct2_unsupported(model.config)
    if obstacles:
        raise UserError(f"CTranslate2 does not support this model: {'; '.join(obstacles)}")


@torch.no_grad()
def write_ct2(model: Model, tokenizer: Tokenizer, directory: Path, dtype: str = "fp32") -> str:
    """Write model.bin, vocabulary and config to a directory; return a short description of the model."""
    check_ct2(model, dtype)
    model = model.eval()
    spec, tokens = build_spec(model), ct2_vocabulary(model, tokenizer)
    config = spec.config
    config.layer_norm_epsilon = norm_epsilon(model.config)
    for role in ("unk_token", "bos_token", "eos_token"):
        token_id = tokenizer.role_ids.get(role)
        setattr(config, role, "" if token_id is None else tokens[token_id])
    if isinstance(model, Seq2Seq):
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)
        config.decoder_start_token = tokens[tokenizer.seq2seq_template.decoder_start_id]
    else:
        spec.register_vocabulary(tokens)
    spec.validate()
    spec.optimize(quantization=_DTYPES[dtype])
    spec.save(str(directory))
    _verify(model, tokenizer, tokens, directory, _TOLERANCES[dtype != "fp32"])
    if isinstance(model, Seq2Seq):
        return "a translation model"
    if isinstance(model, CausalLM):
        return "a language model"
    return "an encoder" if find_pooler(model) is None else "an encoder and its pooled vector"


def ct2_vocabulary(model: Model, tokenizer: Tokenizer) -> list[str]:
    """Return a unique token for each row of the embedding; rows beyond the tokenizer have tokens that occur
    in no text.
    """
    names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    names += [f"<beyond {i}>" for i in range(len(names), model.config.vocab_size)]
    if len(set(names)) < len(names):
        raise UserError(
            "CTranslate2 identifies tokens by name, but two tokens of this vocabulary have the same name"
        )
    return names


def _verify(model: Model, tokenizer: Tokenizer, tokens: list[str], directory: Path, tolerance: float) -> None:
    """Compare the exported model with the original on random ids; a UserError if they differ."""
    ids = torch.randint(len(tokens), (2, max(1, min(7, model.config.max_len - 2))))
    if isinstance(model, Seq2Seq):
        expected, outputs = _target_log_probs(model, ids, tokenizer, tokens, directory)
    elif isinstance(model, CausalLM):
        generator = ctranslate2.Generator(str(directory), compute_type="float32")
        expected, outputs = model(ids), _to_tensor(generator.forward_batch(ids.tolist()))
    else:
        encoder = ctranslate2.Encoder(str(directory), compute_type="float32")
        expected = model.encoder(ids)
        outputs = _to_tensor(encoder.forward_batch(ids.tolist()).last_hidden_state)
    error = (outputs - expected).square().mean().sqrt() / expected.std().clamp(min=1e-3)
    if not error < tolerance:
        raise UserError(
            f"outputs of CTranslate2 differ from this model by {error:.2g} of their standard deviation"
        )


def _target_log_probs(
    model: Seq2Seq, ids: Tensor, tokenizer: Tokenizer, tokens: list[str], directory: Path
) -> tuple[Tensor, Tensor]:
    """Return log p of each token of random targets, ours and that of CTranslate2."""
    translator = ctranslate2.Translator(str(directory), compute_type="float32")
    template = tokenizer.seq2seq_template
    names = [[tokens[i] for i in row] for row in ids.tolist()]
    results = translator.score_batch(names, names)
    edge_tokens = [torch.full((len(ids), 1), token) for token in (template.decoder_start_id, template.eos_id)]
    log_p = model(ids, torch.cat([edge_tokens[0], ids], 1)).log_softmax(-1)
    expected = log_p.gather(2, torch.cat([ids, edge_tokens[1]], 1)[:, :, None])[:, :, 0]
    return expected, torch.tensor([result.log_probs for result in results])


def _to_tensor(view: Any) -> Tensor:
    return torch.from_numpy(np.array(view))

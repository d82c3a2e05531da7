"""Convert the weights of a model to CTranslate2 specifications."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import POOLING
from polyhead.models import CausalLM, Model, Seq2Seq
from polyhead.models.masked_lm import PooledModel
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.norm import RMSNorm
from polyhead.nn.pooling import Pooler, pool_first_token
from polyhead.nn.stack import Stack

_ACTIVATION = common_spec.Activation
_ACTIVATIONS = {
    "relu": _ACTIVATION.RELU,
    "gelu": _ACTIVATION.GELU,
    "gelu_tanh": _ACTIVATION.GELUTanh,
    "silu": _ACTIVATION.SWISH,
    "tanh": _ACTIVATION.Tanh,
    "sigmoid": _ACTIVATION.Sigmoid,
    "glu": _ACTIVATION.Sigmoid,
    "reglu": _ACTIVATION.RELU,
    "geglu": _ACTIVATION.GELU,
    "swiglu": _ACTIVATION.SWISH,
}
_GATED_ACTIVATIONS = ("glu", "reglu", "geglu", "swiglu")


def build_spec(model: Model) -> Any:
    """Return the specification of the whole model, without vocabulary and settings."""
    if isinstance(model, Seq2Seq):
        encoder = _build_encoder(model.config, model.encoder, model.encoder_embedding)
        decoder = _build_decoder(model.config, model.decoder, model.decoder_embedding, model.head, cross=True)
        return transformer_spec.TransformerSpec(encoder, decoder)
    if isinstance(model, CausalLM):
        decoder = _build_decoder(model.config, model.stack, model.embedding, model.head, cross=False)
        return transformer_spec.TransformerDecoderModelSpec(decoder)
    encoder = _build_encoder(model.config, model.encoder.stack, model.encoder.embedding)
    pooler = find_pooler(model)
    if pooler is None:
        return transformer_spec.TransformerEncoderModelSpec(encoder)
    pooling = model.config.pooling or POOLING.check(Choice("first"))  # as in the classifier
    activation = _ACTIVATIONS[pooling.options["activation"]]
    spec = transformer_spec.TransformerEncoderModelSpec(
        encoder, pooling_layer=True, pooling_activation=activation
    )
    assert pooler.proj is not None
    _set_linear(spec.pooler_dense, pooler.proj)
    return spec


def find_pooler(model: Model) -> Pooler | None:
    """Return the pooler if CTranslate2 has it: first token, a linear map and an activation."""
    pooler = model.pooler if isinstance(model, PooledModel) else None
    if not isinstance(pooler, Pooler) or pooler.pool is not pool_first_token:
        return None
    return pooler if pooler.proj is not None and pooler.norm is None else None


def norm_epsilon(config: ModelConfig) -> float:
    """Return eps of all norms."""
    eps: float = config.norm.options["eps"]
    return eps


def _common_options(config: ModelConfig) -> dict[str, Any]:
    """Return the options common to encoder and decoder specifications."""
    name, options = config.feed_forward.name, config.feed_forward.options
    activation = options["activation"] if name == "conv1x1" else name
    tanh = "gelu_tanh" if options.get("tanh") else activation
    qk_norm = any(
        choice is not None and choice.options.get("qk_norm")
        for choice in (config.attention, config.decoder_attention, config.cross_attention)
    )
    spec_options: dict[str, Any] = {
        "pre_norm": config.norm_first,
        "activation": _ACTIVATIONS[tanh],
        "layernorm_embedding": bool(config.embedding_norm),
        "relative_position": config.position.name == "shaw",
        "relative_attention_bias": config.position.name == "t5",
        "ffn_glu": name in _GATED_ACTIVATIONS,
        "rms_norm": config.norm.name == "rmsnorm",
        "pre_post_layer_norm": config.sandwich_norm,
        "num_heads_kv": None if config.kv_heads == config.n_heads else config.kv_heads,
        "head_dim": config.head_dim,
        "qk_norm": qk_norm,
    }
    return spec_options | _rotary_options(config)


def _rotary_options(config: ModelConfig) -> dict[str, Any]:
    if config.position.name != "rope":
        return {}
    options, head_dim = config.position.options, config.attention_shape(causal=True).head_dim
    width = int(head_dim * options["fraction"])
    base, linear = options["theta"], options["scaling"] == "linear"
    if options["scaling"] == "ntk":  # as in nn/position/rope.py
        base *= options["factor"] ** (width / (width - 2))
    return {
        "rotary_dim": width,
        "rotary_interleave": options["layout"] == "interleaved",
        "rotary_base": base,
        "rotary_scaling_type": attention_spec.RotaryScalingType.Linear if linear else None,
        "rotary_scaling_factor": options["factor"] if linear else 1,
    }


def _build_encoder(config: ModelConfig, stack: Stack, embedding: Embedding) -> Any:
    spec = transformer_spec.TransformerEncoderSpec(
        len(stack.layers),
        config.n_heads,
        num_source_embeddings=2 if config.n_segments else 1,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
        **_common_options(config),
    )
    _set_embedding(spec, spec.embeddings[0], embedding, config.max_len)
    if embedding.segment is not None:
        # CTranslate2 scales both embeddings, we scale only that of the token
        spec.scale_embeddings = False
        spec.embeddings[0].weight = embedding.token.weight.detach() * embedding.scale
        spec.embeddings[1].weight = _copy_weight(embedding.segment.weight)
    _set_layers(spec, stack, config)
    return spec


def _build_decoder(
    config: ModelConfig, stack: Stack, embedding: Embedding, head: Head, *, cross: bool
) -> Any:
    alibi = config.position.name == "alibi"
    spec = transformer_spec.TransformerDecoderSpec(
        len(stack.layers),
        config.n_heads,
        with_encoder_attention=cross,
        parallel_residual=config.block.name == "parallel",
        alibi=alibi,
        alibi_use_positive_positions=alibi,
        **_common_options(config),
    )
    _set_embedding(spec, spec.embeddings, embedding, config.max_len)
    spec.projection.weight = _copy_weight(head.weight)
    if head.bias is not None:
        spec.projection.bias = _copy_weight(head.bias)
    if head.scale != 1:
        spec.scale_outputs = np.dtype("float32").type(head.scale)
    if config.logit_softcap is not None:
        spec.final_logit_softcapping = np.dtype("float32").type(config.logit_softcap)
    _set_layers(spec, stack, config)
    return spec


def _set_embedding(spec: Any, tokens: Any, embedding: Embedding, max_len: int) -> None:
    tokens.weight = _copy_weight(embedding.token.weight)
    spec.scale_embeddings = np.dtype("float32").type(embedding.scale) if embedding.scale != 1 else False
    if embedding.norm is not None:
        _set_norm(spec.layernorm_embedding, embedding.norm)
    if "position_encodings" in vars(spec):
        # the position encodings are what is added to a zero embedding; schemes without any add 0
        zeros = torch.zeros(1, max_len, embedding.token.embedding_dim)
        spec.position_encodings.encodings = _copy_weight(embedding.position.embed(zeros, None)[0])


def _set_layers(spec: Any, stack: Stack, config: ModelConfig) -> None:
    for layer_spec, module in zip(spec.layer, stack.layers, strict=True):
        layer: Any = module
        _set_attention(layer_spec.self_attention, layer.attn)
        _set_feed_forward(layer_spec.ffn, layer.ffn)
        norms = [(layer.attn_residual, layer_spec.self_attention), (layer.ffn_residual, layer_spec.ffn)]
        if "attention" in vars(layer_spec):
            _set_attention(layer_spec.attention, layer.cross, cross=True)
            norms.append((layer.cross_residual, layer_spec.attention))
        if config.sandwich_norm:
            _set_norm(layer_spec.input_layer_norm, layer.attn_residual.norm)
            _set_norm(layer_spec.post_attention_layer_norm, layer.attn_residual.sandwich_norm)
            _set_norm(layer_spec.pre_feedforward_layer_norm, layer.ffn_residual.norm)
            _set_norm(layer_spec.post_feedforward_layer_norm, layer.ffn_residual.sandwich_norm)
        elif config.block.name == "parallel":
            _set_norm(layer_spec.input_layer_norm, layer.attn_residual.norm)
            _set_norm(layer_spec.post_attention_layer_norm, layer.ffn_residual.norm)
        else:
            for residual, sublayer_spec in norms:
                _set_norm(sublayer_spec.layer_norm, residual.norm)
    if stack.final_norm is not None:
        _set_norm(spec.layer_norm, stack.final_norm)


def _set_attention(spec: Any, attn: Any, *, cross: bool = False) -> None:
    inputs = (attn.q_proj, attn.k_proj, attn.v_proj)
    if cross:
        _set_linear(spec.linear[0], inputs[0])
        _set_linear(spec.linear[1], *inputs[1:])
    else:
        _set_linear(spec.linear[0], *inputs)
    _set_linear(spec.linear[-1], attn.o_proj)
    if attn.scale is not None:
        spec.queries_scale = np.dtype("float32").type(attn.scale)
    if "q_norm" in vars(spec):
        for norm_spec, norm in ((spec.q_norm, attn.q_norm), (spec.k_norm, attn.k_norm)):
            _set_norm(norm_spec, norm)
    if "relative_attention_bias" in vars(spec):
        spec.relative_attention_bias = _copy_weight(attn.position.weight)
        spec.relative_attention_max_distance = np.dtype("int32").type(attn.position.max_distance)
    if "relative_position_keys" in vars(spec):
        keys, adds = _copy_weight(attn.position.key), attn.position.adds_values
        spec.relative_position_keys = keys
        spec.relative_position_values = _copy_weight(attn.position.value) if adds else torch.zeros_like(keys)


def _set_feed_forward(spec: Any, ffn: Any) -> None:
    if "linear_0_noact" in vars(spec):
        _set_linear(spec.linear_0, ffn.gate_proj)
        _set_linear(spec.linear_0_noact, ffn.up_proj)
    else:
        _set_linear(spec.linear_0, ffn.up_proj)
    _set_linear(spec.linear_1, ffn.down_proj)


def _set_linear(spec: Any, *modules: Any) -> None:
    """Set one linear map from several concatenated; a convolution of width 1 is a linear map."""
    spec.weight = torch.cat([module.weight.detach().flatten(1) for module in modules])
    if any(module.bias is not None for module in modules):
        spec.bias = torch.cat(
            [
                module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias.detach()
                for module in modules
            ]
        )


def _set_norm(spec: Any, norm: Any) -> None:
    weight = _copy_weight(norm.weight)
    spec.gamma = 1 + weight if isinstance(norm, RMSNorm) and norm.zero_centered else weight
    if "beta" in vars(spec):
        spec.beta = torch.zeros_like(weight) if norm.bias is None else _copy_weight(norm.bias)


def _copy_weight(weight: Tensor) -> Tensor:
    """Return a copy, because CTranslate2 quantizes in place."""
    return weight.detach().clone()

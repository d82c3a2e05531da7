"""The weights of a model in the specifications of CTranslate2."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.models import CausalLM, Model, Seq2Seq
from polyhead.nn.embedding import Embedding
from polyhead.nn.head import Head
from polyhead.nn.pooling import Pooler, first_token
from polyhead.nn.stack import Stack
from polyhead.registry import POOLING, Choice

ACTIVATION = common_spec.Activation
ACTIVATIONS = {
    "relu": ACTIVATION.RELU,
    "gelu": ACTIVATION.GELU,
    "gelu_tanh": ACTIVATION.GELUTanh,
    "silu": ACTIVATION.SWISH,
    "tanh": ACTIVATION.Tanh,
    "glu": ACTIVATION.Sigmoid,
    "reglu": ACTIVATION.RELU,
    "geglu": ACTIVATION.GELU,
    "swiglu": ACTIVATION.SWISH,
}
GATED = ("glu", "reglu", "geglu", "swiglu")


def spec_of(model: Model) -> Any:
    """The whole model, but for its vocabulary and settings."""
    if isinstance(model, Seq2Seq):
        encoder = _encoder(model.config, model.encoder, model.encoder_embedding)
        decoder = _decoder(model.config, model.decoder, model.decoder_embedding, model.head, cross=True)
        return transformer_spec.TransformerSpec(encoder, decoder)
    if isinstance(model, CausalLM):
        decoder = _decoder(model.config, model.stack, model.embedding, model.head, cross=False)
        return transformer_spec.TransformerDecoderModelSpec(decoder)
    encoder = _encoder(model.config, model.encoder.stack, model.encoder.embedding)
    pooler = pooler_of(model)
    if pooler is None:
        return transformer_spec.TransformerEncoderModelSpec(encoder)
    pooling = model.config.pooling or POOLING.check(Choice("first"))  # as the classifier itself
    activation = ACTIVATIONS[pooling.options["activation"]]
    spec = transformer_spec.TransformerEncoderModelSpec(
        encoder, pooling_layer=True, pooling_activation=activation
    )
    assert pooler.proj is not None
    _linear(spec.pooler_dense, pooler.proj)
    return spec


def pooler_of(model: Model) -> Pooler | None:
    """What becomes one vector there as well: that of the first token, after a linear map and an activation."""
    pooler = getattr(model, "pooler", None)
    if not isinstance(pooler, Pooler) or pooler.pool is not first_token:
        return None
    return pooler if pooler.proj is not None and pooler.norm is None else None


def epsilon(config: ModelConfig) -> float:
    """That of all norms."""
    eps: float = config.norm.options["eps"]
    return eps


def _common(config: ModelConfig) -> dict[str, Any]:
    """What both sides say of themselves."""
    name, options = config.feed_forward.name, config.feed_forward.options
    activation = options["activation"] if name == "conv1x1" else name
    tanh = "gelu_tanh" if options.get("tanh") else activation
    qk_norm = any(
        choice is not None and choice.options.get("qk_norm")
        for choice in (config.attention, config.decoder_attention, config.cross_attention)
    )
    said: dict[str, Any] = {
        "pre_norm": config.norm_first,
        "activation": ACTIVATIONS[tanh],
        "layernorm_embedding": bool(config.embedding_norm),
        "relative_position": config.position.name == "shaw",
        "relative_attention_bias": config.position.name == "t5",
        "ffn_glu": name in GATED,
        "rms_norm": config.norm.name == "rmsnorm",
        "pre_post_layer_norm": config.sandwich_norm,
        "num_heads_kv": None if config.kv_heads == config.n_heads else config.kv_heads,
        "head_dim": config.head_dim,
        "qk_norm": qk_norm,
    }
    return said | _rotary(config)


def _rotary(config: ModelConfig) -> dict[str, Any]:
    if config.position.name != "rope":
        return {}
    options, head_dim = config.position.options, config.shape(causal=True).head_dim
    width = int(head_dim * options["fraction"])
    base, linear = options["theta"], options["scaling"] == "linear"
    if options["scaling"] == "ntk":  # as in nn/position/scaling.py
        base *= options["factor"] ** (width / (width - 2))
    return {
        "rotary_dim": width,
        "rotary_interleave": options["layout"] == "interleaved",
        "rotary_base": base,
        "rotary_scaling_type": attention_spec.RotaryScalingType.Linear if linear else None,
        "rotary_scaling_factor": options["factor"] if linear else 1,
    }


def _encoder(config: ModelConfig, stack: Stack, embedding: Embedding) -> Any:
    spec = transformer_spec.TransformerEncoderSpec(
        len(stack.layers),
        config.n_heads,
        num_source_embeddings=2 if config.segments else 1,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
        **_common(config),
    )
    _embedding(spec, spec.embeddings[0], embedding, config.max_len)
    if embedding.segment is not None:
        # there both are scaled, here the token alone
        spec.scale_embeddings = False
        spec.embeddings[0].weight = embedding.token.weight.detach() * embedding.scale
        spec.embeddings[1].weight = _own(embedding.segment.weight)
    _layers(spec, stack, config)
    return spec


def _decoder(config: ModelConfig, stack: Stack, embedding: Embedding, head: Head, *, cross: bool) -> Any:
    alibi = config.position.name == "alibi"
    spec = transformer_spec.TransformerDecoderSpec(
        len(stack.layers),
        config.n_heads,
        with_encoder_attention=cross,
        parallel_residual=config.block.name == "parallel",
        alibi=alibi,
        alibi_use_positive_positions=alibi,
        **_common(config),
    )
    _embedding(spec, spec.embeddings, embedding, config.max_len)
    spec.projection.weight = _own(head.weight)
    if head.bias is not None:
        spec.projection.bias = _own(head.bias)
    if head.scale != 1:
        spec.scale_outputs = np.dtype("float32").type(head.scale)
    if config.logit_softcap is not None:
        spec.final_logit_softcapping = np.dtype("float32").type(config.logit_softcap)
    _layers(spec, stack, config)
    return spec


def _embedding(spec: Any, tokens: Any, embedding: Embedding, length: int) -> None:
    tokens.weight = _own(embedding.token.weight)
    spec.scale_embeddings = np.dtype("float32").type(embedding.scale) if embedding.scale != 1 else False
    if embedding.norm is not None:
        _norm(spec.layernorm_embedding, embedding.norm)
    if hasattr(spec, "position_encodings"):
        # what each position adds to nothing; those that act elsewhere add 0
        nothing = torch.zeros(1, length, embedding.token.embedding_dim)
        spec.position_encodings.encodings = _own(embedding.position.embed(nothing, None)[0])


def _layers(spec: Any, stack: Stack, config: ModelConfig) -> None:
    for there, here in zip(spec.layer, stack.layers, strict=True):
        layer: Any = here
        _attention(there.self_attention, layer.attn)
        _feed_forward(there.ffn, layer.ffn)
        norms = [(layer.attn_residual, there.self_attention), (layer.ffn_residual, there.ffn)]
        if hasattr(there, "attention"):
            _attention(there.attention, layer.cross, cross=True)
            norms.append((layer.cross_residual, there.attention))
        if config.sandwich_norm:
            _norm(there.input_layer_norm, layer.attn_residual.norm)
            _norm(there.post_attention_layer_norm, layer.attn_residual.after)
            _norm(there.pre_feedforward_layer_norm, layer.ffn_residual.norm)
            _norm(there.post_feedforward_layer_norm, layer.ffn_residual.after)
        elif config.block.name == "parallel":
            _norm(there.input_layer_norm, layer.attn_residual.norm)
            _norm(there.post_attention_layer_norm, layer.ffn_residual.norm)
        else:
            for residual, place in norms:
                _norm(place.layer_norm, residual.norm)
    if stack.final_norm is not None:
        _norm(spec.layer_norm, stack.final_norm)


def _attention(spec: Any, attn: Any, *, cross: bool = False) -> None:
    inputs = (attn.q_proj, attn.k_proj, attn.v_proj)
    if cross:
        _linear(spec.linear[0], inputs[0])
        _linear(spec.linear[1], *inputs[1:])
    else:
        _linear(spec.linear[0], *inputs)
    _linear(spec.linear[-1], attn.o_proj)
    if attn.scale is not None:
        spec.queries_scale = np.dtype("float32").type(attn.scale)
    if hasattr(spec, "q_norm"):
        for place, norm in ((spec.q_norm, attn.q_norm), (spec.k_norm, attn.k_norm)):
            _norm(place, norm)
    if hasattr(spec, "relative_attention_bias"):
        spec.relative_attention_bias = _own(attn.position.weight)
        spec.relative_attention_max_distance = np.dtype("int32").type(attn.position.max_distance)
    if hasattr(spec, "relative_position_keys"):
        keys, adds = _own(attn.position.key), attn.position.adds_values
        spec.relative_position_keys = keys
        spec.relative_position_values = _own(attn.position.value) if adds else torch.zeros_like(keys)


def _feed_forward(spec: Any, ffn: Any) -> None:
    if hasattr(spec, "linear_0_noact"):
        _linear(spec.linear_0, ffn.gate_proj)
        _linear(spec.linear_0_noact, ffn.up_proj)
    else:
        _linear(spec.linear_0, ffn.up_proj)
    _linear(spec.linear_1, ffn.down_proj)


def _linear(spec: Any, *modules: Any) -> None:
    """One map of those side by side; a convolution of width 1 is a linear map."""
    spec.weight = torch.cat([module.weight.detach().flatten(1) for module in modules])
    if any(module.bias is not None for module in modules):
        spec.bias = torch.cat(
            [
                module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias.detach()
                for module in modules
            ]
        )


def _norm(spec: Any, norm: Any) -> None:
    weight = _own(norm.weight)
    spec.gamma = 1 + weight if getattr(norm, "around_one", False) else weight
    if hasattr(spec, "beta"):
        spec.beta = torch.zeros_like(weight) if norm.bias is None else _own(norm.bias)


def _own(weight: Tensor) -> Tensor:
    """A copy: what CTranslate2 rounds it rounds in place."""
    return weight.detach().clone()

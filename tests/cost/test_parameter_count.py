"""Parameters by part: the tables of the literature to the last one, against the reference implementation's
own count.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from polyhead.cli import main
from polyhead.config.model import ModelConfig
from polyhead.config.presets import PRESET_INFO
from polyhead.cost.parameter_count import (
    count_active_parameters,
    count_model_parameters,
    group_parameters,
    published_config,
)
from polyhead.models.build import model_class

BART = {"vocab_size": 50265}
T5 = {"vocab_size": 32128}
THEIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", {}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "gpt2-medium": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-base": ("BertConfig", "BertModel", {}),
    "bert-large": ("BertConfig", "BertModel", {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {}),
    "electra-small": ("ElectraConfig", "ElectraModel", {}),
    "electra-base": ("ElectraConfig", "ElectraModel", {
        "embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "albert-base-v2": ("AlbertConfig", "AlbertModel", {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "bart-base": ("BartConfig", "BartForConditionalGeneration", {
        **BART, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
        "encoder_attention_heads": 12, "decoder_attention_heads": 12}),
    "bart-large": ("BartConfig", "BartForConditionalGeneration", BART),
    "t5-small": ("T5Config", "T5ForConditionalGeneration", T5),
    "t5-base": ("T5Config", "T5ForConditionalGeneration", {
        **T5, "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "t5-large": ("T5Config", "T5ForConditionalGeneration", {
        **T5, "d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16}),
    "t5-3b": ("T5Config", "T5ForConditionalGeneration", {
        **T5, "d_model": 1024, "d_ff": 16384, "num_layers": 24, "num_heads": 32, "d_kv": 128}),
    "t5-11b": ("T5Config", "T5ForConditionalGeneration", {
        **T5, "d_model": 1024, "d_ff": 65536, "num_layers": 24, "num_heads": 128, "d_kv": 128}),
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_a_preset_has_as_many_parameters_as_the_model_it_is_named_after(name: str) -> None:
    config, model, sizes = THEIRS[name]
    with torch.device("meta"):
        theirs = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    # the reference implementation keeps the bias of BART's scores as a buffer
    wanted = sum(p.numel() for p in theirs.parameters()) + (50265 if name.startswith("bart") else 0)
    assert count_model_parameters(published_config(name)) == wanted


@pytest.mark.parametrize("name", PRESET_INFO)
def test_a_preset_is_near_what_its_paper_says(name: str) -> None:
    # table 2.1 of Brown et al. gives GPT-3 XL 24 heads of 128, wider than its d_model: its 1.3 billion are
    # not of these sizes
    far = 0.17 if name == "gpt3-xl" else 0.045
    assert count_model_parameters(published_config(name)) == pytest.approx(
        PRESET_INFO[name].parameters, rel=far
    )


@pytest.mark.parametrize("name", PRESET_INFO)
def test_every_parameter_is_in_one_part_and_every_part_has_its_formula(name: str) -> None:
    config = published_config(name)
    with torch.device("meta"):
        assert sum(p.numel() for p in model_class(config)(config).parameters()) == count_model_parameters(
            config
        )
    assert all(part.formula for part in group_parameters(config))


def test_bert_is_explained_to_the_last_parameter() -> None:
    """Embeddings VH + TH + 2H + 2H, layers 12H² + 13H, pooler H² + H: 110 and 340 million (Devlin et al.,
    2018).
    """
    for name, layers, H in (("bert-base", 12, 768), ("bert-large", 24, 1024)):
        found = {part.name: (part.total, part.formula) for part in group_parameters(published_config(name))}
        assert found == {
            "token embedding": (30522 * H, "VH"),
            "position embedding": (512 * H, "TH"),
            "segment embedding": (2 * H, "2H"),
            "embedding norm": (2 * H, "2H"),
            "layer": (layers * (12 * H * H + 13 * H), "12H² + 13H"),
            "pooler": (H * H + H, "H² + H"),
        }
    assert (
        count_model_parameters(published_config("bert-base")),
        count_model_parameters(published_config("bert-large")),
    ) == (109_482_240, 335_141_888)


def test_grouped_and_gated_layers_have_their_formula_too() -> None:
    config = ModelConfig(
        kind="decoder", vocab_size=100, d_model=32, n_heads=4, n_kv_heads=2, d_ff=48, norm="rmsnorm",
        norm_first=True,
        attention={"name": "softmax", "bias": False}, feed_forward="swiglu", position="rope",
            tie_embeddings="none",
    )  # fmt: skip
    found = {part.name: (part.params_each, part.formula) for part in group_parameters(config)}
    assert found["layer"] == (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 64, "2HA + 2HG + 3HF + 2H")
    assert found["head"] == (3200, "VH")


def test_embeddings_with_a_width_of_their_own_have_their_formulas() -> None:
    H, E, V, T = 32, 12, 100, 20
    config = ModelConfig(
        kind="encoder", vocab_size=V, d_model=H, d_embedding=E, n_heads=4, n_layers=1, max_len=T,
        position="learned", n_segments=2,
        embedding_norm=True, lm_head_bias=True, norm_first=True,
    )  # fmt: skip
    found = {
        part.name: (part.total, part.formula) for part in group_parameters(config) if part.name != "layer"
    }
    assert found == {
        "token embedding": (V * E, "VE"),
        "position embedding": (T * E, "TE"),
        "segment embedding": (2 * E, "2E"),
        "embedding norm": (2 * E, "2E"),
        "embedding projection": (E * H + H, "EH + H"),
        "final_norm": (2 * H, "2H"),
        "head": (H * E + E + 2 * E + V, "HE + E + 2E + V"),
    }


@pytest.mark.parametrize(("tying", "head", "formula"), [("all", 0, "HE"), ("none", 1200, "HE + VE")])
def test_of_a_decoder_the_embeddings_alone_are_narrow(tying: str, head: int, formula: str) -> None:
    H, E, V, T = 32, 12, 100, 20
    config = ModelConfig(
        kind="decoder", vocab_size=V, d_model=H, d_embedding=E, n_heads=4, n_layers=1, max_len=T,
        position="learned",
        embedding_norm=True, tie_embeddings=tying,
    )  # fmt: skip
    found = {
        part.name: (part.total, part.formula) for part in group_parameters(config) if part.name != "layer"
    }
    assert found == {
        "token embedding": (V * E, "VE"),
        "position embedding": (T * H, "TH"),
        "embedding norm": (2 * H, "2H"),
        "embedding projection": (E * H, "EH"),
        "head": (H * E + head, formula),
    }


def test_layers_of_a_pattern_are_counted_by_kind() -> None:
    normed = {"attention": {"name": "softmax", "qk_norm": True}}
    config = ModelConfig(
        kind="decoder", vocab_size=50, d_model=32, n_layers=5, n_heads=2, layer_pattern=[{}, normed]
    )
    layers = [
        (part.name, part.times, part.params_each) for part in group_parameters(config) if "layer" in part.name
    ]
    plain = 12 * 32**2 + 13 * 32
    assert layers == [("layer, as 1", 3, plain), ("layer, as 2", 2, plain + 2 * 16)]
    assert count_model_parameters(config) == sum(p.numel() for p in model_class(config)(config).parameters())


def test_of_experts_a_token_passes_those_that_it_has() -> None:
    """Mixtral 8x7B (Jiang et al., 2024, sec. 2.1): 47 billion parameters, of which a token has 13."""
    experts = {"name": "moe", "n_experts": 8, "top_k": 2, "expert": "swiglu", "balance": False}
    config = ModelConfig(
        kind="decoder", vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=8, d_ff=14336,
        norm="rmsnorm",
        norm_first=True, position="rope", attention={"name": "softmax", "bias": False}, feed_forward=experts,
            tie_embeddings="none",
    )  # fmt: skip
    assert count_model_parameters(config) == 46_702_792_704
    assert count_active_parameters(config) == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336
    assert round(count_active_parameters(config) / 1e9, 1) == 12.9


@pytest.mark.parametrize(("typed", "said"), [([], "requires a preset"), (["runs/mine"], "a run has its own")])
def test_a_vocabulary_is_that_of_a_preset(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["params", *typed, "--vocab-size", "7"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "polyhead: --vocab-size" in err and said in err


@pytest.mark.parametrize("changes", [{}, {"d_embedding": 8, "position": "learned", "share_layers": True},
    {"tie_embeddings": "none"}])  # fmt: skip
def test_of_an_encoder_that_tells_replaced_tokens_its_generator_is_apart(changes: dict[str, Any]) -> None:
    config = ModelConfig(
        kind="encoder", vocab_size=50, d_model=16, n_heads=2, n_layers=3, generator_layers=2, norm_first=True,
        max_len=20, **changes
    )  # fmt: skip
    model = model_class(config)(config)
    named = dict(model.named_parameters())
    found: dict[str, int] = {}
    for part in group_parameters(config):
        found[part.name] = found.get(part.name, 0) + part.total

    def counted(*beginnings: str) -> int:
        return sum(p.numel() for name, p in named.items() if name.startswith(beginnings))

    assert sum(found.values()) == sum(p.numel() for p in model.parameters())
    assert found["layer"] == counted("encoder.stack.layers.")
    assert found["generator layer"] == counted("generator.encoder.stack.layers.")
    assert found["head"] == counted("detector")
    assert found["generator head"] == counted("generator.transform", "generator.head")
    assert found["final_norm"] == found["generator final_norm"] == 32
    assert {part.formula for part in group_parameters(config) if part.name == "head"} == {"H² + 2H + 1"}

import json
from pathlib import Path

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

MODELS = json.loads(Path(__file__).with_name("hugging_face_models.json").read_text())


def count_meta_parameters(build):
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


@pytest.mark.parametrize("name", MODELS)
def test_preset_has_the_parameters_of_its_model(name):
    config, model, sizes = MODELS[name]
    n = count_meta_parameters(lambda: getattr(transformers, model)(getattr(transformers, config)(**sizes)))
    # BART keeps the bias of its logits as a buffer
    assert count_model_parameters(published_config(name)) == n + (50265 if name.startswith("bart") else 0)


@pytest.mark.parametrize("name", PRESET_INFO)
def test_preset_parameters_are_counted_by_part(name):
    config = published_config(name)
    n = count_model_parameters(config)
    assert count_meta_parameters(lambda: model_class(config)(config)) == n
    assert sum(part.total for part in group_parameters(config)) == n
    assert all(part.formula for part in group_parameters(config))
    # table 2.1 of Brown et al. gives GPT-3 XL 24 heads of 128, more than d_model: not of its 1.3 billion
    assert n == pytest.approx(PRESET_INFO[name].parameters, rel=0.17 if name == "gpt3-xl" else 0.045)


def test_parts_of_bert_equal_the_formula():
    config, layers, H = published_config("bert-base"), 12, 768
    parts = {part.name: (part.total, part.formula) for part in group_parameters(config)}
    assert parts == {
        "token embedding": (30522 * H, "VH"),
        "position embedding": (512 * H, "TH"),
        "segment embedding": (2 * H, "2H"),
        "embedding norm": (2 * H, "2H"),
        "layer": (layers * (12 * H * H + 13 * H), "12H² + 13H"),
        "pooler": (H * H + H, "H² + H"),
    }
    assert count_model_parameters(config) == 109_482_240  # Devlin et al., 2018: 110 million


def test_layers_have_a_formula_by_kind():
    config = ModelConfig(
        kind="decoder", vocab_size=100, d_model=32, n_heads=4, n_kv_heads=2, d_ff=48, norm="rmsnorm",
        norm_first=True, attention={"name": "softmax", "bias": False}, feed_forward="swiglu",
        position="rope", tie_embeddings="none",
    )  # fmt: skip
    parts = {part.name: (part.params_each, part.formula) for part in group_parameters(config)}
    assert parts["layer"] == (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 64, "2HA + 2HG + 3HF + 2H")
    assert parts["head"] == (3200, "VH")
    sizes = {"vocab_size": 50, "d_model": 32, "n_heads": 4, "head_dim": 12, "d_ff": 48}
    (layer,) = [
        part for part in group_parameters(ModelConfig(kind="decoder", **sizes)) if "layer" in part.name
    ]
    assert layer.params_each == 4 * 32 * 48 + 3 * 48 + 2 * 32 * 48 + 48 + 2 * 32 + 4 * 32
    assert layer.formula == "4HA + 3A + H + 2HF + F + H + 4H"
    # layers of a pattern are counted by kind
    pattern = [{}, {"attention": {"name": "softmax", "qk_norm": True}}]
    sizes = {"vocab_size": 50, "d_model": 32, "n_layers": 5, "n_heads": 2}
    config = ModelConfig(kind="decoder", layer_pattern=pattern, **sizes)
    parts = [(part.name, part.times, part.params_each) for part in group_parameters(config)]
    layers = [part for part in parts if "layer" in part[0]]
    plain = 12 * 32**2 + 13 * 32
    assert layers == [("layer, as 1", 3, plain), ("layer, as 2", 2, plain + 2 * 16)]
    assert count_model_parameters(config) == count_meta_parameters(lambda: model_class(config)(config))


H, E, V, T = 32, 12, 100, 20
FACTORIZED_SIZES = {
    "vocab_size": V, "d_model": H, "d_embedding": E, "n_heads": 4, "n_layers": 1, "max_len": T,
    "position": "learned", "embedding_norm": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"kind": "encoder", "n_segments": 2, "lm_head_bias": True, "norm_first": True},
            {
                "token embedding": (V * E, "VE"),
                "position embedding": (T * E, "TE"),
                "segment embedding": (2 * E, "2E"),
                "embedding norm": (2 * E, "2E"),
                "embedding projection": (E * H + H, "EH + H"),
                "final_norm": (2 * H, "2H"),
                "head": (H * E + E + 2 * E + V, "HE + E + 2E + V"),
            },
        ),
        *(
            (
                {"kind": "decoder", "tie_embeddings": tying},
                {
                    "token embedding": (V * E, "VE"),
                    "position embedding": (T * H, "TH"),
                    "embedding norm": (2 * H, "2H"),
                    "embedding projection": (E * H, "EH"),
                    "head": (H * E + head, formula),
                },
            )
            for tying, head, formula in (("all", 0, "HE"), ("none", V * E, "HE + VE"))
        ),
    ],
    ids=["encoder", "tied decoder", "decoder"],
)
def test_factorized_embeddings_have_formulas(changes, expected):
    """Only the token embeddings of a decoder are narrow."""
    config = ModelConfig(**FACTORIZED_SIZES, **changes)
    parts = {part.name: (part.total, part.formula) for part in group_parameters(config)}
    assert {name: part for name, part in parts.items() if name != "layer"} == expected


def test_active_parameters_are_those_of_selected_experts():
    """Mixtral 8x7B (Jiang et al., 2024, sec. 2.1): 47 billion parameters, 13 of them per token."""
    experts = {"name": "moe", "n_experts": 8, "top_k": 2, "expert": "swiglu", "balance": False}
    config = ModelConfig(
        kind="decoder", vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=8, d_ff=14336,
        norm="rmsnorm", norm_first=True, position="rope", attention={"name": "softmax", "bias": False},
        feed_forward=experts, tie_embeddings="none",
    )  # fmt: skip
    assert count_model_parameters(config) == 46_702_792_704
    assert count_active_parameters(config) == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336
    assert round(count_active_parameters(config) / 1e9, 1) == 12.9


def test_vocab_size_requires_a_preset(capsys):
    for arguments, message in (([], "requires a preset"), (["runs/mine"], "a run has its own")):
        assert main(["params", *arguments, "--vocab-size", "7"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and "polyhead: --vocab-size" in err and message in err


@pytest.mark.parametrize(
    "changes",
    [{}, {"d_embedding": 8, "position": "learned", "share_layers": True}, {"tie_embeddings": "none"}],
    ids=str,
)
def test_generator_of_an_electra_model_is_counted_separately(changes):
    config = ModelConfig(
        kind="encoder", vocab_size=50, d_model=16, n_heads=2, n_layers=3, generator_layers=2, norm_first=True,
        max_len=20, **changes
    )  # fmt: skip
    model, totals = model_class(config)(config), {}
    for part in group_parameters(config):
        totals[part.name] = totals.get(part.name, 0) + part.total

    def count(*prefixes):
        return sum(p.numel() for name, p in model.named_parameters() if name.startswith(prefixes))

    assert sum(totals.values()) == count("")
    assert totals["layer"] == count("encoder.stack.layers.")
    assert totals["generator layer"] == count("generator.encoder.stack.layers.")
    assert totals["head"] == count("detector")
    assert totals["generator head"] == count("generator.transform", "generator.head")
    assert totals["final_norm"] == totals["generator final_norm"] == 32
    assert {part.formula for part in group_parameters(config) if part.name == "head"} == {"H² + 2H + 1"}

"""Tests of cli/components.py: the listing shows the registries; `mistakes.txt` has its messages."""

from polyhead.cli.components import RECIPE_KEYS, format_option
from polyhead.core.registry import ALL_REGISTRIES


def test_every_component_and_option_is_listed(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = cli("components").out
    lines = out.splitlines()
    assert not [line for line in lines if len(line) > 100 or "`" in line or "\0" in line]
    for registry in ALL_REGISTRIES:
        assert out.count(f"{registry.kind} (recipe: {', '.join(RECIPE_KEYS[registry.kind])})\n") == 1
        for name in registry.names():
            assert f"\n  {name} " in out
            for option in registry.options(name).items():
                assert any(format_option(*option) in line for line in lines), "an option is on one line"


def test_one_component_is_described(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    assert cli("components", "rmsnorm").out == (
        "norm rmsnorm\n"
        "\n"
        "Scale each token by the root mean square of its features, without\n"
        "centring.\n"
        "\n"
        "No mean and no bias, so there is less to compute and to learn. The mean\n"
        "square is taken in fp32.\n"
        "\n"
        "Equation  y = x / √(mean(x²) + eps) ⊙ γ,  or ⊙ (1 + γ) if zero_centered\n"
        "Paper     Zhang & Sennrich, 2019, eq. 4\n"
        "When      a good first choice for a new model; used in T5 and Llama\n"
        "Recipe    model.norm=rmsnorm model.norm.eps=1e-06\n"
        "\n"
        "Options\n"
        "  eps: float = 1e-06\n"
        "      added to the mean square\n"
        "  zero_centered: bool = false\n"
        "      γ is stored as its distance from 1 and starts at 0, so weight\n"
        "      decay pulls the factor to 1 (Gemma, 2024)\n"
        "  weight: bool = true\n"
        "      learn γ; without, it stays 1 (nanochat, 2025)\n"
        "\n"
        "Defined in polyhead.nn.norm\n"
    )


def test_registry_with_several_keys_is_listed_once():
    assert RECIPE_KEYS["attention"] == ["model.attention", "model.decoder_attention", "model.cross_attention"]
    assert RECIPE_KEYS["block"] == ["model.block", "model.decoder_block"]


def test_component_of_another_package_has_its_kind(cli):
    out = cli("components", "polyhead.nn.norm:RMSNorm").out
    assert out.startswith("norm polyhead.nn.norm:RMSNorm\n\nScale each token")
    assert "\nRecipe    model.norm=polyhead.nn.norm:RMSNorm model.norm.eps=1e-06\n" in out


def test_kind_lists_its_components(cli):
    out = cli("components", "norm").out
    assert "norm layernorm\n" in out and "norm rmsnorm\n" in out

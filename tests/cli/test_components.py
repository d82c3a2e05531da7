"""The catalogue shows what the registries hold."""

from __future__ import annotations

import pytest

from polyhead.cli import main
from polyhead.cli.components import RECIPE_KEYS, format_option
from polyhead.core.registry import ALL_REGISTRIES


def test_every_part_and_option_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["components"]) == 0
    out = capsys.readouterr().out
    for registry in ALL_REGISTRIES:
        assert out.count(f"{registry.kind} (recipe: {', '.join(RECIPE_KEYS[registry.kind])})\n") == 1
        for name in registry.names():
            assert f"\n  {name} " in out
            for option in registry.options(name):
                assert f"{option}: " in out


def test_one_part_is_told_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert main(["components", "rmsnorm"]) == 0
    assert capsys.readouterr().out == (
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


def test_the_list_fits_the_terminal_and_keeps_options_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["components"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if len(line) > 100 or "`" in line or "\0" in line]
    for registry in ALL_REGISTRIES:
        for name in registry.names():
            for option in registry.options(name).items():
                assert any(format_option(*option) in line for line in lines)


def test_one_registry_with_several_keys_is_listed_once() -> None:
    assert RECIPE_KEYS["attention"] == ["model.attention", "model.decoder_attention", "model.cross_attention"]
    assert RECIPE_KEYS["block"] == ["model.block", "model.decoder_block"]


def test_a_part_of_another_package_is_told_with_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["components", "polyhead.nn.norm:RMSNorm"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("norm polyhead.nn.norm:RMSNorm\n\nScale each token")
    assert "\nRecipe    model.norm=polyhead.nn.norm:RMSNorm model.norm.eps=1e-06\n" in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("polyhead.nn.norm:RMSNorn", "polyhead.nn.norm has no 'RMSNorn'; did you mean 'RMSNorm'?"),
        ("os:kill", "os is part of Python itself and has no components"),
        (
            "torch.nn:Linear",
            "'torch.nn:Linear' does not match the parameters of any kind of component: block (config, "
            "shape, ",
        ),
    ],
)
def test_what_is_no_part_of_another_package_is_said(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["components", name]) == 2
    assert message in capsys.readouterr().err


def test_a_kind_is_told_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["components", "norm"]) == 0
    out = capsys.readouterr().out
    assert "norm layernorm\n" in out
    assert "norm rmsnorm\n" in out


def test_an_unknown_part_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["components", "ropee"]) == 2
    answer = "polyhead: unknown component 'ropee'; did you mean 'rope'? polyhead components lists all\n"
    assert capsys.readouterr().err == answer

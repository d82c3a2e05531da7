"""Tests of cli/components.py: the listing shows the registries; `mistakes.txt` has its messages."""

from pathlib import Path

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
    description = Path(__file__).with_name("rmsnorm.txt").read_text()
    assert cli("components", "rmsnorm").out == description
    out = cli("components", "polyhead.nn.norm:RMSNorm").out
    assert out.startswith("norm polyhead.nn.norm:RMSNorm\n\nScale each token")
    assert "\nRecipe    model.norm=polyhead.nn.norm:RMSNorm model.norm.eps=1e-06\n" in out
    out = cli("components", "norm").out
    assert "norm layernorm\n" in out and "norm rmsnorm\n" in out

"""What the verb shows is what the run's model computes, in the page and in the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import polyhead
from polyhead import ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.introspect.attention_map import AttentionMap, attention_text
from polyhead.introspect.compute_attention import record_attention
from polyhead.run.run import Run

SOURCE, TARGET = "ein hund bellt .", "a dog barks ."
NAMES = {
    "cross": "decoder.layers.0.cross",
    "encoder": "encoder.layers.0.attn",
    "decoder": "decoder.layers.0.attn",
}


def embedded(page: Path) -> list[Any]:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(), re.S)
    found: list[Any] = json.loads(text)
    return found


def seen(directory: Path, written: list[int]) -> dict[str, torch.Tensor]:
    """The weights of a pass over the pair, kind by kind, (layers, heads, T, S)."""
    run = polyhead.load(directory)
    t = run.tokenizer
    with torch.inference_mode(), record_attention(run.model) as passes:
        run.model(torch.tensor([[*t.encode([SOURCE])[0], t.eos_id]]), torch.tensor([[t.bos_id, *written]]))
    return {kind: passes[name][0] for kind, name in NAMES.items()}


def test_the_page_holds_every_kind_and_the_terminal_the_map_asked_for(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, run = tmp_path / "new" / "page.html", polyhead.load(tiny)
    arguments = ["--kind", "decoder", "--layer", "1", "--head", "3", "--out", str(page)]
    assert main(["attention", str(tiny), SOURCE, TARGET, *arguments]) == 0
    source, target = (
        [run.display_token(i).replace("␣", " ") for i in ids]
        for ids in run.tokenizer.encode([SOURCE, TARGET])
    )
    weights = seen(tiny, run.tokenizer.encode([TARGET])[0])
    maps = embedded(page)
    assert [m["kind"] for m in maps] == [
        "cross-attention",
        "encoder self-attention",
        "decoder self-attention",
    ]
    for m, kind in zip(maps, NAMES, strict=True):
        torch.testing.assert_close(torch.tensor(m["weights"]) / 1000, weights[kind], rtol=0, atol=6e-4)
    assert [len(m["source"]) for m in maps] == [len(source) + 1, len(source) + 1, len(target) + 1]
    assert [len(m["target"]) for m in maps] == [len(target) + 1, len(source) + 1, len(target) + 1]
    assert maps[2]["source"][0] == "▶"
    assert [m["target"][-1] for m in maps] == ["■"] * 3
    wanted = AttentionMap(["▶", *target], [*target, "■"], weights["decoder"], "decoder self-attention")
    out = capsys.readouterr().out
    assert out == f"{attention_text(wanted, 0, 2)}\n\nall layers and heads: {page}\n"
    assert f"Given: {TARGET}" in page.read_text()


def test_without_a_target_the_runs_own_translation_is_shown(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attention", str(tiny), SOURCE]) == 0
    run = polyhead.load(tiny)
    (best,) = run.hypotheses([SOURCE])[0]
    out = capsys.readouterr().out
    assert out.startswith(
        run.translate([SOURCE])[0].replace("\n", " ") + "\n\ncross-attention, layer 1 of 1, mean of 4 heads\n"
    )
    weights = torch.tensor(embedded(tiny / "attention.html")[0]["weights"]) / 1000
    torch.testing.assert_close(weights, seen(tiny, best.tokens)["cross"], rtol=0, atol=6e-4)
    (tiny / "attention.html").unlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hund", "--layer", "2"], "--layer: no layer '2'; available: 1 to 1, and mean"),
        (["hund", "--head", "0"], "--head: no head '0'; available: 1 to 4, and mean"),
        (["hund", "--head", "x"], "--head: no head 'x'; available: 1 to 4, and mean"),
        ([" "], "TEXT is empty: expected text"),
        (["hund", ""], "TARGET is empty: expected text"),
        (["hund " * 40], r"the text has \d+ tokens; the model's maximum is 31"),
        (["hund " * 40, "dog"], r"the text has \d+ tokens; the model's maximum is 31"),
        (["hund", "dog " * 40], r"the target has \d+ tokens; the model's maximum is 31"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], message: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attention", str(tiny), *arguments]) == 2
    assert re.match(f"polyhead: {message}", capsys.readouterr().err)
    assert not (tiny / "attention.html").exists()


@pytest.mark.parametrize(
    ("kind", "recipe", "text", "read"),
    [
        ("decoder", None, SOURCE, [SOURCE]),
        ("decoder", "file", SOURCE, [SOURCE]),
        ("decoder", "line", SOURCE, ["</s>", SOURCE]),
        ("encoder", None, SOURCE, ["<s>", SOURCE, "</s>"]),
        ("encoder", None, "ein <mask> bellt .", ["<s>", "ein", "<mask>", " bellt .", "</s>"]),
    ],
)
def test_a_model_of_one_side_shows_the_text_as_it_reads_it(
    kind: str,
    recipe: str | None,
    text: str,
    read: list[str],
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokenizer = polyhead.load(tiny).tokenizer
    config = ModelConfig(
        kind=kind, vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=2, max_len=24
    )
    data = {"train": ["a"], "valid": ["a"], "document_separator": recipe}
    tree = {"task": "language-model", "data": data, "train": {"steps": 1}, "out": str(tmp_path)}
    taught = None if recipe is None else Recipe.model_validate(tree)
    Run(build(config, seed=0), tokenizer, GenerationConfig(), taught).save(tmp_path)
    assert main(["attention", str(tmp_path), text]) == 0
    out = capsys.readouterr().out
    assert out.startswith("self-attention, layer 2 of 2, mean of 2 heads\n")
    special = {"<s>": tokenizer.bos_id, "</s>": tokenizer.eos_id, "<mask>": tokenizer.mask_id}
    pieces = [[special[piece]] if piece in special else tokenizer.encode([piece])[0] for piece in read]
    model, ids = polyhead.load(tmp_path).model, torch.tensor([[i for piece in pieces for i in piece]])
    with torch.inference_mode(), record_attention(model) as passes:
        model(ids)
    (shown,) = embedded(tmp_path / "attention.html")
    wanted = torch.stack([weights[0] for (weights,) in passes.values()])
    torch.testing.assert_close(torch.tensor(shown["weights"]) / 1000, wanted, rtol=0, atol=6e-4)
    assert shown["source"] == shown["target"]
    assert len(shown["source"]) == ids.size(1)
    assert main(["attention", str(tmp_path), SOURCE, TARGET]) == 2
    assert "this model takes one text" in capsys.readouterr().err
    assert main(["attention", str(tmp_path), SOURCE, "--kind", "cross"]) == 2
    assert "has no cross weights to show; available: self" in capsys.readouterr().err
    v = polyhead.load(tiny).tokenizer.vocab_size
    config = ModelConfig(kind="decoder", block="gru", position="none", vocab_size=v, d_model=16, n_heads=2)
    Run(build(config, seed=0), polyhead.load(tiny).tokenizer, GenerationConfig()).save(tmp_path / "gru")
    assert main(["attention", str(tmp_path / "gru"), SOURCE]) == 2
    said = "this model has no attention weights to show: no layer has attention\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("segments", [0, 2])
def test_a_classifier_shows_the_pair_as_it_reads_it(
    segments: int, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    t = polyhead.load(tiny).tokenizer
    sizes = {"vocab_size": t.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 24}
    config = ModelConfig(kind="encoder", labels=("n", "y"), n_segments=segments, **sizes)
    Run(build(config, seed=0), t, GenerationConfig()).save(tmp_path)
    assert main(["attention", str(tmp_path), SOURCE, TARGET]) == 0
    assert capsys.readouterr().out.startswith("self-attention, layer 2 of 2, mean of 2 heads\n")
    first, second = t.encode([SOURCE, TARGET])
    ids = torch.tensor([[t.bos_id, *first, t.eos_id, *second, t.eos_id]])
    kinds = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
    model = polyhead.load(tmp_path).model
    with torch.inference_mode(), record_attention(model) as passes:
        model(ids, None, kinds if segments else None)
    (shown,) = embedded(tmp_path / "attention.html")
    wanted = torch.stack([weights[0] for (weights,) in passes.values()])
    torch.testing.assert_close(torch.tensor(shown["weights"]) / 1000, wanted, rtol=0, atol=6e-4)
    assert len(shown["source"]) == ids.size(1)
    assert main(["attention", str(tmp_path), SOURCE, "dog " * 40]) == 2
    assert "the pair, including special tokens, has" in capsys.readouterr().err


def test_layers_have_the_numbers_that_they_have_in_the_model(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = polyhead.load(tiny).tokenizer
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 4, "max_len": 24}
    model = build(ModelConfig(kind="decoder", layer_pattern=[{"block": "gru"}, {}], **sizes), seed=0)
    Run(model, tokenizer, GenerationConfig()).save(tmp_path)
    with torch.inference_mode(), record_attention(model.eval()) as passes:
        model(torch.tensor(tokenizer.encode([SOURCE])))
    assert [re.findall(r"\d+", name) for name in passes] == [["1"], ["3"]]
    assert main(["attention", str(tmp_path), SOURCE]) == 0
    assert capsys.readouterr().out.startswith("self-attention, layer 4 of 2, 4, mean of 2 heads\n")
    (shown,) = embedded(tmp_path / "attention.html")
    assert shown["layers"] == [2, 4]
    assert main(["attention", str(tmp_path), SOURCE, "--layer", "2"]) == 0
    (found,) = polyhead.load(tmp_path).attention_maps(SOURCE).values()
    assert attention_text(found, 0) in capsys.readouterr().out
    assert attention_text(found, None).startswith("self-attention, mean of layers 2, 4, mean of 2 heads\n")
    assert main(["attention", str(tmp_path), SOURCE, "--layer", "3"]) == 2
    said = "--layer: no layer '3'; available: 2, 4, and mean"
    assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="2 layers has 1"):
        attention_text(found._replace(layers=[2]))

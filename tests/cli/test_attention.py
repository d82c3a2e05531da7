"""Tests of cli/attention.py: the maps of the page and of the terminal are those of the model."""

import json
import re
from itertools import pairwise

import pytest
import torch

import polyhead
from polyhead import ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.introspect.attention_map import AttentionMap, attention_text
from polyhead.introspect.compute_attention import record_attention
from polyhead.run.run import Run
from polyhead.run.run_examples import write_examples

SOURCE, TARGET = "ein hund bellt .", "a dog barks ."
LAYERS = {"cross": "decoder.layers.0.cross"}
LAYERS |= {side: f"{side}.layers.0.attn" for side in ("encoder", "decoder")}
SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 24}


def read_maps(page):
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def record(model, *inputs):
    """The attention weights of one pass by the names of layers, each (layers, heads, T, S)."""
    with torch.inference_mode(), record_attention(model) as passes:
        model(*inputs)
    return passes


def record_pair(directory, target):
    """The attention weights of a pass over SOURCE and the tokens of a target."""
    run = polyhead.load(directory)
    t = run.tokenizer
    source = torch.tensor([[*t.encode([SOURCE])[0], t.eos_id]])
    passes = record(run.model, source, torch.tensor([[t.bos_id, *target]]))
    return {kind: passes[name][0] for kind, name in LAYERS.items()}


def assert_weights(attention_map, expected):
    torch.testing.assert_close(torch.tensor(attention_map["weights"]) / 1000, expected, rtol=0, atol=6e-4)


@pytest.fixture
def save(tiny, tmp_path):
    """A function that saves an untrained model with the tokenizer of `tiny`; returns the tokenizer."""

    def save_run(recipe=None, **fields):
        tokenizer = polyhead.load(tiny).tokenizer
        config = ModelConfig(vocab_size=tokenizer.vocab_size, **SIZES | fields)
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        Run(build(config, seed=0), tokenizer, GenerationConfig(), recipe).save(tmp_path)
        return tokenizer

    return save_run


def test_page_has_all_maps_and_terminal_one(tiny, tmp_path, cli):
    page, run = tmp_path / "new" / "page.html", polyhead.load(tiny)
    options = ["--kind", "decoder", "--layer", 1, "--head", 2, "--out", page]
    out = cli("attention", tiny, SOURCE, TARGET, *options).out
    ids = run.tokenizer.encode([SOURCE, TARGET])
    source, target = ([run.display_token(i).replace("␣", " ") for i in row] for row in ids)
    weights, maps = record_pair(tiny, ids[1]), read_maps(page)
    kinds = ["cross-attention", "encoder self-attention", "decoder self-attention"]
    assert [m["kind"] for m in maps] == kinds
    for m, kind in zip(maps, LAYERS, strict=True):
        assert_weights(m, weights[kind])
    assert [len(m["source"]) for m in maps] == [len(source) + 1, len(source) + 1, len(target) + 1]
    assert [len(m["target"]) for m in maps] == [len(target) + 1, len(source) + 1, len(target) + 1]
    start, end = "▶\u00a0<s>", "■\u00a0</s>"
    assert maps[2]["source"][0] == start
    assert [m["target"][-1] for m in maps] == [end] * 3
    # a row of a decoder has the token that goes in and the one that is written
    names = [token.strip() for token in [start, *target, end]]
    rows = [f"{token} → {next_token}" for token, next_token in pairwise(names)]
    assert maps[0]["rows"] == maps[2]["rows"] == rows and maps[1]["rows"] == maps[1]["source"]
    expected = AttentionMap([start, *target], [*target, end], weights["decoder"], kinds[2], row_labels=rows)
    assert out == f"{attention_text(expected, 0, 2)}\n\nall layers and heads: {page}\n"
    assert f"Given: {TARGET}" in page.read_text()


def test_target_defaults_to_the_translation(tiny, cli):
    out = cli("attention", tiny, SOURCE).out
    run = polyhead.load(tiny)
    (best,) = run.hypotheses([SOURCE])[0]
    text = run.translate([SOURCE])[0].replace("\n", " ")
    assert out.startswith(f"{text}\n\ncross-attention, layer 1 of 1, mean of 4 heads\n")
    assert_weights(read_maps(tiny / "attention.html")[0], record_pair(tiny, best.tokens)["cross"])
    (tiny / "attention.html").unlink()


@pytest.mark.parametrize(
    ("kind", "separator", "text", "pieces"),
    [
        ("decoder", None, SOURCE, [SOURCE]),
        ("decoder", "file", SOURCE, [SOURCE]),
        ("decoder", "line", SOURCE, ["</s>", SOURCE]),
        ("encoder", None, SOURCE, ["<s>", SOURCE, "</s>"]),
        ("encoder", None, "ein <mask> bellt .", ["<s>", "ein", "<mask>", " bellt .", "</s>"]),
    ],
)
def test_text_of_one_sided_model_has_special_tokens(kind, separator, text, pieces, save, tmp_path, cli):
    data = {"train": ["a"], "valid": ["a"], "document_separator": separator}
    tree = {"task": "language-model", "data": data, "train": {"steps": 1}, "out": str(tmp_path)}
    tokenizer = save(Recipe.model_validate(tree) if separator else None, kind=kind)
    assert cli("attention", tmp_path, text).out.startswith("self-attention, layer 2 of 2, mean of 2 heads\n")
    special = {"<s>": tokenizer.bos_id, "</s>": tokenizer.eos_id, "<mask>": tokenizer.mask_id}
    ids = [i for p in pieces for i in ([special[p]] if p in special else tokenizer.encode([p])[0])]
    passes = record(polyhead.load(tmp_path).model, torch.tensor([ids]))
    (attention_map,) = read_maps(tmp_path / "attention.html")
    assert_weights(attention_map, torch.stack([weights[0] for (weights,) in passes.values()]))
    assert attention_map["source"] == attention_map["target"]
    assert len(attention_map["source"]) == len(ids)


@pytest.mark.parametrize("segments", [0, 2])
def test_pair_of_classifier_has_its_segments(segments, save, tmp_path, cli):
    t = save(kind="encoder", labels=("n", "y"), n_segments=segments)
    out = cli("attention", tmp_path, SOURCE, TARGET).out
    assert out.startswith("self-attention, layer 2 of 2, mean of 2 heads\n")
    first, second = t.encode([SOURCE, TARGET])
    ids = torch.tensor([[t.bos_id, *first, t.eos_id, *second, t.eos_id]])
    kinds = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
    passes = record(polyhead.load(tmp_path).model, ids, None, kinds if segments else None)
    (attention_map,) = read_maps(tmp_path / "attention.html")
    assert_weights(attention_map, torch.stack([weights[0] for (weights,) in passes.values()]))
    assert len(attention_map["source"]) == ids.size(1)
    message = cli.error("attention", tmp_path, SOURCE, "dog " * 40)
    assert "the pair, including special tokens, has" in message


def test_layers_are_numbered_as_in_the_model(save, tmp_path, cli):
    tokenizer = save(kind="decoder", n_layers=4, layer_pattern=[{"block": "gru"}, {}])
    passes = record(polyhead.load(tmp_path).model, torch.tensor(tokenizer.encode([SOURCE])))
    assert [re.findall(r"\d+", name) for name in passes] == [["1"], ["3"]]
    out = cli("attention", tmp_path, SOURCE).out
    assert out.startswith("self-attention, layer 4 of 2, 4, mean of 2 heads\n")
    (attention_map,) = read_maps(tmp_path / "attention.html")
    assert attention_map["layers"] == [2, 4]
    (expected,) = polyhead.load(tmp_path).attention_maps(SOURCE).values()
    assert attention_text(expected, 0) in cli("attention", tmp_path, SOURCE, "--layer", 2).out
    assert attention_text(expected, None).startswith("self-attention, mean of layers 2, 4, mean of 2 heads\n")
    message = cli.error("attention", tmp_path, SOURCE, "--layer", 3)
    assert message == "--layer: no layer '3'; available: 2, 4, and mean"
    with pytest.raises(ValueError, match="2 layers has 1"):
        attention_text(expected._replace(layers=[2]))
    save(kind="decoder", block="gru", position="none")
    message = "this model has no attention weights to show: no layer has attention"
    assert cli.error("attention", tmp_path, SOURCE) == message


def test_heads_are_scored_over_examples(save, tmp_path, cli):
    save()
    assert "heads needs validation texts" in cli.error("attention", tmp_path, "--heads")
    write_examples(tmp_path, [(SOURCE, TARGET), ("ein hund", "a dog " * 30), ("hund bellt", "dog barks")])
    out = cli("attention", tmp_path, "--heads").out
    assert [line.split(":")[0] for line in out.splitlines()[:3]] == [
        "cross-attention", "encoder self-attention", "decoder self-attention",
    ]  # fmt: skip
    page = (tmp_path / "heads.html").read_text()
    assert "over 2 validation texts" in page  # the second target is too long for the model
    maps = polyhead.load(tmp_path).attention_maps
    weights = [
        maps(*pair)["encoder"].weights[1, 0] for pair in [(SOURCE, TARGET), ("hund bellt", "dog barks")]
    ]
    first = torch.cat([one[:, 0] for one in weights]).mean()
    figure = page.split('id="encoder-2-0"')[1].split("</figure>")[0]
    assert f"first token {first:.0%}" in figure
    assert "takes no TEXT" in cli.error("attention", tmp_path, SOURCE, "--heads")
    assert "TEXT is missing" in cli.error("attention", tmp_path)

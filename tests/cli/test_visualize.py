"""What is drawn is what the run holds: its tokens, counted in its own text, where its embedding puts them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.visualize_helpers import GERMAN, clouds
from tests.cli.visualize_helpers import made as made
from tests.viz.html_pages import Page

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.position_plots import position_matrices

ENGLISH = ["a dog barks .", "two dogs bark aloud .", "a <b>red</b> dog sleeps", '&amp; "x"'] * 5


def test_the_page_needs_nothing_else_and_shows_the_scheme_of_both_sides(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["visualize", str(made), "--out", str(page), "--tokens", "60", "--positions", "9"]) == 0
    text = page.read_text()
    parsed = Page(text)
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#)[a-z]+:""", text)
    assert "<b>roter" not in text
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == ["Positions of the encoder", "Positions of the decoder", "Embeddings"]
    model = polyhead.load(made).model
    wanted = [
        grid
        for embedding, causal in ((model.encoder_embedding, False), (model.decoder_embedding, True))
        for grid in position_matrices(embedding.position, model.config.attention_shape(causal), 9)
    ]
    shown = [data for data in parsed.data() if isinstance(data, dict) and "values" in data]
    assert [(d["rows"], d["columns"]) for d in shown] == [tuple(grid.values.shape) for grid in wanted]
    assert [d["most"] for d in shown] == pytest.approx([float(grid.values.abs().max()) for grid in wanted])


def test_the_same_run_gives_the_same_page(made: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        assert main(["visualize", str(made), "--out", str(tmp_path / name), "--tokens", "30"]) == 0
        pages.append((tmp_path / name).read_text())
    assert pages[0] == pages[1]


def test_without_its_text_the_first_tokens_of_the_vocabulary_are_drawn_and_that_is_said(tiny: Path) -> None:
    assert main(["visualize", str(tiny), "--tokens", "12", "--positions", "4"]) == 0
    page, run = tiny / "draw.html", polyhead.load(tiny)
    told = clouds(page)
    assert told["counts"] is None
    specials = {run.tokenizer.pad_id, run.tokenizer.bos_id, run.tokenizer.eos_id}
    assert told["names"] == [run.display_token(i) for i in range(5, 17)]
    assert specials < set(range(5))
    assert "the training text could not be read" in page.read_text()
    page.unlink()


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_a_model_of_one_side_is_drawn_as_one(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("\n".join(ENGLISH) + "\n")
    tokenizer = train_tokenizer(ENGLISH, Choice("bpe"), 300)
    sizes = {"kind": kind, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 24, "position": "alibi"}
    recipe = Recipe.model_validate(
        {"task": "language-model", "data": {"root": tmp_path, "train": ["text"], "valid_fraction": 0.2,
            "max_len": 8},
         "model": sizes | {"kind": "decoder"}, "train": {"steps": 1}}
    )  # fmt: skip
    model = build(ModelConfig.model_validate(sizes | {"vocab_size": tokenizer.vocab_size}))
    Run(model, tokenizer, GenerationConfig(), recipe).save(tmp_path)
    assert main(["visualize", str(tmp_path), "--side", "target"]) == 2
    assert capsys.readouterr().err == "polyhead: --side target: this model has one side only; remove it\n"
    assert main(["visualize", str(tmp_path), "--tokens", "12", "--positions", "6"]) == 0
    text = (tmp_path / "draw.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", text) == ["Positions", "Embeddings"]
    counted = Counter(i for i in tokenizer.encode(["\n".join(ENGLISH[:16]) + "\n"])[0])
    assert clouds(tmp_path / "draw.html")["counts"] == [n for _, n in counted.most_common(12)]
    (grid,) = [d for d in Page(text).data() if isinstance(d, dict) and d.get("row") == "head"]
    assert isinstance(grid, dict)
    assert (grid["first"], grid["columns"]) == (
        [1, 0 if kind == "decoder" else -5],
        6 if kind == "decoder" else 11,
    )


@pytest.mark.parametrize("position", ["none", "learned"])
def test_a_scheme_without_numbers_or_with_few_positions_has_a_page(position: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(GERMAN, Choice("bpe"), 300)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        n_heads=2,
        n_layers=1,
        max_len=8,
        position=Choice(position),
    )
    Run(build(config), tokenizer, GenerationConfig()).save(tmp_path)
    assert main(["visualize", str(tmp_path), "--tokens", "6", "--positions", "100"]) == 0
    text = (tmp_path / "draw.html").read_text()
    assert ("no part of this model depends on positions" in text) == (position == "none")
    assert ('"rows":8' in text) == (position == "learned")
    assert "``" not in text, "marks of the source"
    json.dumps(text)

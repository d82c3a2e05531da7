"""Tests of cli/visualize.py: the page has the run's tokens, counts, positions and embeddings."""

import re
from collections import Counter

import pytest
from tests.cli.cli_helpers import save_run
from tests.cli.visualize_helpers import ENGLISH, GERMAN, clouds
from tests.cli.visualize_helpers import run_dir as run_dir
from tests.viz.html_pages import Page

import polyhead
from polyhead.run.run_examples import write_examples
from polyhead.viz.embedding_page import position_matrices


def headings(text):
    return re.findall("<h2>(.*?)</h2>", text)


def test_page_is_self_contained_and_has_both_sides(run_dir, tmp_path, cli):
    page = tmp_path / "page.html"
    texts = []
    for _ in range(2):
        cli("visualize", run_dir, "--out", page, "--tokens", 60, "--positions", 9)
        texts.append(page.read_text())
    text = texts[0]
    assert text == texts[1]
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#)[a-z]+:""", text)
    assert "<b>roter" not in text
    assert headings(text) == ["Positions of the encoder", "Positions of the decoder", "Embeddings"]
    model = polyhead.load(run_dir).model
    sides = ((model.encoder_embedding, False), (model.decoder_embedding, True))
    shapes = [(part.position, model.config.attention_shape(causal)) for part, causal in sides]
    expected = [matrix.values for shape in shapes for matrix in position_matrices(*shape, 9)]
    blocks = [data for data in Page(text).data() if isinstance(data, dict) and "values" in data]
    assert [(d["rows"], d["columns"]) for d in blocks] == [tuple(values.shape) for values in expected]
    assert [d["most"] for d in blocks] == pytest.approx([float(v.abs().max()) for v in expected])


def test_missing_text_shows_first_tokens_of_the_vocabulary(tiny, tmp_path, cli):
    page = tmp_path / "page.html"
    cli("visualize", tiny, "--tokens", 12, "--positions", 4, "--out", page)
    data, run = clouds(page), polyhead.load(tiny)
    t = run.tokenizer
    assert {t.pad_id, t.bos_id, t.eos_id} < set(range(5))
    assert data["counts"] is None and data["names"] == [run.display_token(i) for i in range(5, 17)]
    assert "the run keeps no examples" in page.read_text()


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_one_sided_model_has_one_side(kind, tmp_path, cli):
    run = save_run(tmp_path, ENGLISH, kind=kind, max_len=24, position="alibi")
    write_examples(tmp_path, ((line,) for line in ENGLISH))
    message = cli.error("visualize", tmp_path, "--side", "target")
    assert message == "--side target: this model has one side only; remove it"
    cli("visualize", tmp_path, "--tokens", 12, "--positions", 6)
    text = (tmp_path / "draw.html").read_text()
    assert headings(text) == ["Positions", "Embeddings"]
    counts = Counter(token for ids in run.tokenizer.encode(ENGLISH) for token in ids)
    assert clouds(tmp_path / "draw.html")["counts"] == [n for _, n in counts.most_common(12)]
    (grid,) = [d for d in Page(text).data() if isinstance(d, dict) and d.get("row") == "head"]
    first, columns = (0, 6) if kind == "decoder" else (-5, 11)
    assert (grid["first"], grid["columns"]) == ([1, first], columns)


@pytest.mark.parametrize("position", ["none", "learned"])
def test_positions_without_matrix_or_with_few_rows(position, tmp_path, cli):
    save_run(tmp_path, GERMAN, max_len=8, position=position)
    cli("visualize", tmp_path, "--tokens", 6, "--positions", 100)
    text = (tmp_path / "draw.html").read_text()
    assert ("no part of this model depends on positions" in text) == (position == "none")
    assert ('"rows":8' in text) == (position == "learned")
    assert "``" not in text

from collections import Counter

import torch
from tests.cli.visualize_helpers import GERMAN, clouds, make
from tests.cli.visualize_helpers import made as made
from tests.viz.html_pages import Page

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.introspect.projection import pca
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ENGLISH = ["a dog barks .", "two dogs bark aloud .", "a <b>red</b> dog sleeps", '&amp; "x"'] * 5


def test_tokens_are_the_most_frequent_of_the_training_text_and_their_dots_the_components(
    made, tmp_path, capsys
):
    page = tmp_path / "page.html"
    assert main(["visualize", str(made), "--out", str(page), "--tokens", "30", "--positions", "10"]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    run = polyhead.load(made)
    sides = [Counter(i for line in run.tokenizer.encode(texts) for i in line) for texts in (GERMAN, ENGLISH)]
    total = sides[0] + sides[1]
    ids = sorted(total, key=lambda i: (-total[i], i))[:30]
    told = clouds(page)
    assert told["names"] == [run.display_token(i) for i in ids]
    assert told["counts"] == [total[i] for i in ids]
    parsed = Page(page.read_text())
    dots = [d for d in parsed.all("circle") if str(d["class"]).startswith("point")]
    assert [d["data-i"] for d in dots] == [str(i) for i in range(30)] * 4  # two projections, two sizes
    for dot, i in zip(dots, ids, strict=False):
        share = sides[0][i] / total[i]
        assert dot["class"] == f"point c{0 if share >= 0.8 else 1 if share <= 0.2 else 4}"
    points, _ = pca(run.model.decoder_embedding.token.weight[ids].detach())
    drawn = torch.tensor([[float(str(d["cx"])), -float(str(d["cy"]))] for d in dots[:30]])
    drawn = (drawn - drawn.mean(0)) / (drawn - drawn.mean(0)).norm()
    torch.testing.assert_close(drawn, (points / points.norm()).float(), atol=1e-3, rtol=0)


def test_embeddings_that_are_not_shared_are_drawn_one_at_a_time(tmp_path, capsys):
    run = make(tmp_path, "none")
    assert main(["visualize", str(run), "--side", "both"]) == 2
    assert (
        "source and target of this model have separate embeddings; choose source or target"
        in capsys.readouterr().err
    )
    t = polyhead.load(run).tokenizer
    for side, texts in (("source", GERMAN), ("target", ENGLISH)):
        assert main(["visualize", str(run), "--side", side, "--tokens", "10", "--positions", "4"]) == 0
        counted = Counter(i for line in t.encode(texts) for i in line)
        assert clouds(run / "draw.html")["counts"] == [n for _, n in counted.most_common(10)]


def test_embeddings_with_a_width_of_their_own_are_drawn_in_it(tmp_path):
    sizes = {
        "kind": "encoder",
        "d_model": 16,
        "d_embedding": 6,
        "n_heads": 2,
        "n_layers": 1,
        "position": "learned",
    }
    tokenizer = train_tokenizer(ENGLISH, Choice("bpe"), 300)
    model = build(ModelConfig.model_validate(sizes | {"vocab_size": tokenizer.vocab_size}))
    Run(model, tokenizer, GenerationConfig()).save(tmp_path)
    assert main(["visualize", str(tmp_path), "--tokens", "12", "--positions", "5"]) == 0
    text = (tmp_path / "draw.html").read_text()
    assert "from 6 features to two" in text
    (grid,) = [d for d in Page(text).data() if isinstance(d, dict) and d.get("column") == "feature"]
    assert isinstance(grid, dict) and grid["columns"] == 6

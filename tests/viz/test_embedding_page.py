from collections import Counter

import pytest
import torch
from tests.viz.html_pages import Page

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.introspect.projection import pca
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = {
    "de": ["ein hund bellt .", "zwei hunde bellen laut .", "ein <b>roter</b> hund schläft", "</script>"] * 5,
    "en": ["a dog barks .", "two dogs bark aloud .", "a <b>red</b> dog sleeps", '&amp; "x"'] * 5,
}
SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 24}


@pytest.fixture
def save_run(tmp_path):
    def save_one(tie):
        for name, lines in TEXTS.items():
            (tmp_path / name).write_text("\n".join(lines) + "\n")
        tokenizer = train_tokenizer([*TEXTS["de"], *TEXTS["en"]], Choice("bpe"), 320)
        data = {"root": tmp_path, "train": [*TEXTS], "valid": [*TEXTS]}
        data |= {"source_lang": "de", "target_lang": "en"}
        model = {**SIZES, "position": "t5", "tie_embeddings": tie}
        recipe = Recipe.model_validate({"data": data, "model": model, "train": {"steps": 1}})
        model = build(recipe.model.with_vocabulary(tokenizer.vocab_size), seed=0)
        Run(model, tokenizer, GenerationConfig(), recipe).save(tmp_path / "run")
        return tmp_path / "run"

    return save_one


def read_clouds(path):
    return next(data for data in Page(path.read_text()).data() if "near" in data)


def count_tokens(tokenizer, lines):
    return Counter(i for line in tokenizer.encode(lines) for i in line)


def test_points_are_components_of_most_frequent_tokens(save_run, tmp_path, capsys):
    run_dir, path = save_run("all"), tmp_path / "page.html"
    assert main(["visualize", str(run_dir), "--out", str(path), "--tokens", "30", "--positions", "10"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    run = polyhead.load(run_dir)
    german, english = (count_tokens(run.tokenizer, TEXTS[side]) for side in ("de", "en"))
    total = german + english
    ids = sorted(total, key=lambda i: (-total[i], i))[:30]
    clouds = read_clouds(path)
    assert clouds["names"] == [run.display_token(i) for i in ids]
    assert clouds["counts"] == [total[i] for i in ids]
    points = [d for d in Page(path.read_text()).all("circle") if d["class"].startswith("point")]
    assert [d["data-i"] for d in points] == [str(i) for i in range(30)] * 4  # two projections, two sizes
    for point, i in zip(points, ids, strict=False):
        fraction = german[i] / total[i]
        assert point["class"] == f"point c{0 if fraction >= 0.8 else 1 if fraction <= 0.2 else 4}"
    expected, _ = pca(run.model.decoder_embedding.token.weight[ids].detach())
    positions = torch.tensor([[float(d["cx"]), -float(d["cy"])] for d in points[:30]])
    positions = (positions - positions.mean(0)) / (positions - positions.mean(0)).norm()
    torch.testing.assert_close(positions, (expected / expected.norm()).float(), atol=1e-3, rtol=0)


def test_separate_embeddings_are_drawn_one_at_a_time(save_run, capsys):
    run_dir = save_run("none")
    assert main(["visualize", str(run_dir), "--side", "both"]) == 2
    message = "source and target of this model have separate embeddings; choose source or target"
    assert message in capsys.readouterr().err
    tokenizer = polyhead.load(run_dir).tokenizer
    for side, language in (("source", "de"), ("target", "en")):
        options = ["--side", side, "--tokens", "10", "--positions", "4"]
        assert main(["visualize", str(run_dir), *options]) == 0
        counts = [n for _, n in count_tokens(tokenizer, TEXTS[language]).most_common(10)]
        assert read_clouds(run_dir / "draw.html")["counts"] == counts


def test_embedding_width_may_differ_from_model(tmp_path):
    tokenizer = train_tokenizer(TEXTS["en"], Choice("bpe"), 300)
    config = {**SIZES, "kind": "encoder", "d_embedding": 6, "position": "learned"}
    model = build(ModelConfig(**config, vocab_size=tokenizer.vocab_size))
    Run(model, tokenizer, GenerationConfig()).save(tmp_path)
    assert main(["visualize", str(tmp_path), "--tokens", "12", "--positions", "5"]) == 0
    html = (tmp_path / "draw.html").read_text()
    assert "from 6 features to two" in html
    matrices = [data for data in Page(html).data() if "column" in data]
    assert [matrix["columns"] for matrix in matrices if matrix["column"] == "feature"] == [6]

import math
from collections import Counter

import pytest
import torch
from tests.explain.explain_helpers import sinusoid
from tests.viz.html_pages import Page

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import AttentionShape
from polyhead.config.recipe import Recipe
from polyhead.core.registry import POSITION
from polyhead.introspect.projection import pca
from polyhead.nn.position.base import Position
from polyhead.run.run import Run
from polyhead.run.run_examples import write_examples
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.embedding_page import position_matrices

TEXTS = {
    "de": ["ein hund bellt .", "zwei hunde bellen laut .", "ein <b>roter</b> hund schläft", "</script>"] * 5,
    "en": ["a dog barks .", "two dogs bark aloud .", "a <b>red</b> dog sleeps", '&amp; "x"'] * 5,
}
SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 24}


@pytest.fixture
def save_run(tmp_path):
    def save_one(tie):
        tokenizer = train_tokenizer([*TEXTS["de"], *TEXTS["en"]], Choice("bpe"), 320)
        data = {"root": tmp_path, "train": [*TEXTS], "valid": [*TEXTS]}
        data |= {"source_lang": "de", "target_lang": "en"}
        model = {**SIZES, "position": "t5", "tie_embeddings": tie}
        recipe = Recipe.model_validate({"data": data, "model": model, "train": {"steps": 1}})
        model = build(recipe.model.with_vocabulary(tokenizer.vocab_size), seed=0)
        Run(model, tokenizer, GenerationConfig(), recipe).save(tmp_path / "run")
        write_examples(tmp_path / "run", zip(TEXTS["de"], TEXTS["en"], strict=True))
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


N = 12
SHAPE = AttentionShape.from_sizes(16, 2, max_len=20)


def plot(name, causal=False):
    torch.manual_seed(0)
    shape = SHAPE._replace(causal=causal)
    scheme = POSITION.build(POSITION.check(Choice(name)), shape)
    return scheme, position_matrices(scheme, shape, N)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", POSITION.names())
def test_every_scheme_has_finite_plots(name, causal):
    scheme, matrices = plot(name, causal)
    assert bool(matrices) == (scheme.kind != "nothing")
    for matrix in matrices:
        assert matrix.values.dim() == 2
        assert bool(matrix.values.isfinite().all())
        assert matrix.values.abs().max() > 0


def mean_cosines(rates):
    """The mean over pairs of features of the cosine of the angle between two positions."""
    distance = torch.arange(N)[:, None] - torch.arange(N)
    return (distance[..., None] * torch.tensor(rates)).cos().mean(-1)


def test_tables_of_absolute_positions():
    _, (table, similarity) = plot("sinusoidal")
    torch.testing.assert_close(table.values, sinusoid(N, 16), atol=1e-6, rtol=0, check_dtype=False)
    expected = mean_cosines([10000 ** (-2 * k / 16) for k in range(8)])
    torch.testing.assert_close(similarity.values, expected, atol=1e-6, rtol=0, check_dtype=False)
    scheme, (table, _) = plot("learned")
    assert torch.equal(table.values, scheme.weight[:N])


class InterleavedRope(Position):
    """Rotary positions whose pairs are features 2j and 2j + 1, and of which the last pair is not rotated."""

    def rotate(self, x, pos):
        a, b = x[..., ::2], x[..., 1::2]
        angle = torch.arange(x.size(2))[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.0])
        pairs = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
        return torch.stack(pairs, -1).flatten(-2)


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
def test_rotary_angles_are_found_in_any_layout(layout):
    if layout == "half-split":
        rates, matrices = [10000 ** (-2 * j / 8) for j in range(4)], plot("rope")[1]
    else:
        rates, matrices = [1.0, 0.1, 0.01], position_matrices(InterleavedRope(SHAPE), SHAPE, N)
    angles = torch.arange(N)[:, None] * torch.tensor(rates)
    products = mean_cosines(rates + [0.0] * (4 - len(rates)))
    for matrix, expected in zip(matrices, (angles.cos(), angles.sin(), products), strict=True):
        torch.testing.assert_close(matrix.values, expected, atol=1e-6, rtol=0, check_dtype=False)


class Slopes(Position):
    """The first head prefers near keys, the second later ones."""

    def bias(self, q, kv, pos, scale=None):
        distance = torch.arange(q.size(2))[:, None] - torch.arange(kv.k.size(2))
        return torch.stack([-0.5 * distance.abs(), -0.25 * distance])[None]


@pytest.mark.parametrize("causal", [False, True])
def test_bias_is_drawn_by_distance_and_as_weights(causal):
    shape = SHAPE._replace(causal=causal)
    by_distance, *heads = position_matrices(Slopes(shape), shape, N)
    d = torch.arange(0 if causal else 1 - N, N)
    assert (by_distance.row, by_distance.first_row, by_distance.first_column) == ("head", 1, d[0])
    torch.testing.assert_close(by_distance.values, torch.stack([-0.5 * d.abs(), -0.25 * d]))
    distance = torch.arange(N)[:, None] - torch.arange(N)
    for matrix, scores in zip(heads, (-0.5 * distance.abs(), -0.25 * distance), strict=True):
        scores = scores.masked_fill((distance < 0) & causal, -math.inf)
        expected = (scores - scores.amax(1, keepdim=True)).exp()  # relative to the largest
        torch.testing.assert_close(matrix.values, expected, atol=1e-6, rtol=0, check_dtype=False)


class DistanceVectors(Position):
    """The product of the query with a vector for the distance."""

    def __init__(self, shape):
        super().__init__(shape)
        self.vectors = {d: torch.randn(shape.head_dim) for d in range(-N, N + 1)}

    def bias(self, q, kv, pos, scale=None):
        T, S = q.size(2), kv.k.size(2)
        table = torch.stack([torch.stack([self.vectors[t - s] for s in range(S)]) for t in range(T)])
        return torch.einsum("bhtd,tsd->bhts", q, table)


@pytest.mark.parametrize("causal", [False, True])
def test_bias_of_query_is_drawn_as_vectors(causal):
    shape = SHAPE._replace(causal=causal)
    scheme = DistanceVectors(shape)
    table, similarity = position_matrices(scheme, shape, N)
    first = 0 if causal else 1 - N // 2
    assert (table.first_column, similarity.first_row, similarity.first_column) == (first,) * 3
    vectors = torch.stack([scheme.vectors[first + i] for i in range(table.values.size(1))])
    torch.testing.assert_close(table.values, vectors.T)
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors, dim=-1)
    torch.testing.assert_close(similarity.values, cosines, atol=1e-5, rtol=0, check_dtype=False)

import json

import numpy as np
import pytest
import torch
from tests.train.conftest import user_error

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.run.run import Run
from polyhead.run.search_texts import search_texts
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = [
    f"{colour} {thing}" for colour in ("red", "blue", "green", "old") for thing in ("dog", "house", "sea")
]
SIZES = {
    "kind": "encoder",
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "max_len": 40,
    "scale_embedding": False,
}


def make_encoder(directory, labels=(), **options):
    tokenizer = train_tokenizer(TEXTS, Choice("char"), 100)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, labels=labels, **SIZES, **options)
    generation = GenerationConfig(score_activation="identity")
    Run(ph.build(config, seed=3), tokenizer, generation).save(directory)
    return ph.load(directory)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    make_encoder(folder / "vectors", lm_head=False)
    make_encoder(folder / "scores", labels=("score",))
    make_encoder(folder / "classes", labels=("bad", "good"))
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return folder


@pytest.mark.parametrize("k", [3, 100])
def test_hits_are_nearest_lines(directory, k, capsys):
    run = ph.load(directory / "vectors")
    vectors = run.embed(TEXTS, normalize=True).double().numpy()
    arguments = ["search", str(directory / "vectors"), str(directory / "texts.txt"), "-k", str(k)]
    assert main([*arguments, "--query", "blue sea", "--query", "dog", "--json"]) == 0
    for query, line in zip(("blue sea", "dog"), capsys.readouterr().out.splitlines(), strict=True):
        cosines = vectors @ run.embed([query], normalize=True).double().numpy()[0]
        order = sorted(range(len(TEXTS)), key=lambda i: -cosines[i])[:k]
        row = json.loads(line)
        assert row["query"] == query and [hit["line"] for hit in row["hits"]] == [i + 1 for i in order]
        assert [hit["text"] for hit in row["hits"]] == [TEXTS[i] for i in order]
        assert [hit["score"] for hit in row["hits"]] == pytest.approx(cosines[order], abs=1e-5)
    assert main([*arguments, "--query", TEXTS[4]]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"1.0000\t5\t{TEXTS[4]}"


@pytest.mark.parametrize("dimensions", [2, 16])
def test_first_dimensions_are_compared(directory, dimensions, capsys):
    run, query = ph.load(directory / "vectors"), "blue sea"
    vectors = run.embed([query, *TEXTS]).double().numpy()[:, :dimensions]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors[1:] @ vectors[0]
    arguments = ["search", str(directory / "vectors"), str(directory / "texts.txt"), "--query", query]
    assert main([*arguments, "-k", "100", "--dimensions", str(dimensions), "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert [hit["score"] for hit in hits] == pytest.approx(np.sort(cosines)[::-1], abs=1e-5)
    assert [hit["score"] for hit in hits] == pytest.approx(
        [cosines[hit["line"] - 1] for hit in hits], abs=1e-5
    )


def test_blank_lines_are_not_found(directory):
    run, reranker = ph.load(directory / "vectors"), ph.load(directory / "scores")
    texts = ["", "old dog", " \u200b", "old dog"]
    vectors = run.embed(texts, normalize=True).numpy()
    for query in ("", "old dog"):
        assert [hit.line for hit in search_texts(run, query, texts, vectors, 3)] == [2, 4]
        assert [hit.line for hit in search_texts(run, query, texts, vectors, 3, reranker)] == [2, 4]


def test_reranker_orders_nearest_texts(directory, capsys):
    run, reranker = ph.load(directory / "vectors"), ph.load(directory / "scores")
    texts = [*TEXTS, *(f"{text} {i}" for i, text in enumerate(TEXTS))]
    vectors = run.embed(texts, normalize=True).numpy()
    near = {hit.text for hit in search_texts(run, "old dog", texts, vectors, k=10)}
    with torch.inference_mode():
        results = reranker.classify([("old dog", text) for text in near])
    best = sorted(zip((result.probabilities["score"] for result in results), near, strict=True))[-1]
    (hit,) = search_texts(run, "old dog", texts, vectors, 1, reranker)
    assert hit.text == best[1] and hit.score == pytest.approx(best[0], abs=1e-5)
    assert texts[hit.line - 1] == hit.text
    arguments = ["search", str(directory / "vectors"), str(directory / "texts.txt"), "--query", "old dog"]
    assert main([*arguments, "-k", "2", "--rerank", str(directory / "scores")]) == 0
    scores = [float(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    everything = [r.probabilities["score"] for r in reranker.classify([("old dog", text) for text in TEXTS])]
    assert scores == pytest.approx(np.sort(everything)[:-3:-1], abs=1e-4)


def test_unusable_rerankers_and_files_are_refused(directory, capsys):
    run, other = ph.load(directory / "vectors"), ph.load(directory / "classes")
    assert main(["search", str(directory / "vectors"), str(directory / "texts.txt"), "--query", "a",
                 "--rerank", str(directory / "classes")]) == 2  # fmt: skip
    assert "this one reads 2 and has 2 labels" in capsys.readouterr().err
    assert main(["search", str(directory / "vectors"), "-"]) == 2
    assert "cannot both be standard input" in capsys.readouterr().err
    (directory / "none.txt").write_text("")
    assert main(["search", str(directory / "vectors"), str(directory / "none.txt"), "--query", "a"]) == 2
    assert "none.txt has no lines to search" in capsys.readouterr().err
    assert main(["search", str(directory / "vectors"), str(directory / "texts.txt"), "-k", "0"]) == 2
    with user_error("text 1 is int, expected a string"):
        search_texts(run, 3, TEXTS, run.embed(TEXTS).numpy(), 1)  # type: ignore[arg-type]
    assert other.config.labels == ("bad", "good")

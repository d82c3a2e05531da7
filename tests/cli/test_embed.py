"""Tests of cli/embed.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.evaluate.fill_mask_helpers import place as place
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.cli import main
from polyhead.run.run import Run


def test_embed_in_the_shell(place: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    texts, file = ["the dog", "a cat runs"], place.parent / "texts.txt"
    wanted = run.embed(texts).numpy()
    assert main(["embed", str(place), str(file)]) == 0
    rows = [[float(cell) for cell in line.split("\t")] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    for name in ("out.npy", "out.jsonl"):
        assert main(["embed", str(place), str(file), "--output", str(place.parent / name)]) == 0
    np.testing.assert_allclose(np.load(place.parent / "out.npy"), wanted, atol=1e-6)
    said = [json.loads(line) for line in (place.parent / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in said] == texts
    np.testing.assert_allclose([row["vector"] for row in said], wanted, atol=1e-6)
    (place.parent / "none.txt").write_text("")
    assert (
        main(
            ["embed", str(place), str(place.parent / "none.txt"), "--output", str(place.parent / "none.npy")]
        )
        == 0
    )
    assert np.load(place.parent / "none.npy").shape == (0, run.config.d_model)
    link = place.parent / "link.npy"
    link.symlink_to(place.parent / "none.npy")
    assert main(["embed", str(place), str(file), "--output", str(link)]) == 0
    assert link.is_symlink()
    np.testing.assert_allclose(np.load(place.parent / "none.npy"), wanted, atol=1e-6)
    (place / "metrics.jsonl").write_text("{}\n")
    assert main(["embed", str(place), str(file), "--output", str(place / "metrics.jsonl")]) == 2
    assert "metrics.jsonl is an input" in capsys.readouterr().err
    assert main(["embed", str(place), str(file), "--like", "the dog", "--pooling", "first"]) == 0
    found = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    a, b = run.embed(texts, pooling="first").numpy()
    assert [text for _, text in found] == texts
    assert [float(near) for near, _ in found] == pytest.approx(
        [1.0, a @ b / np.linalg.norm(a) / np.linalg.norm(b)], abs=1e-3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "x.csv"], "--output x.csv: expected a name that ends with .npy or .jsonl"),
        (
            ["--output", "x.npy", "--like", "a"],
            "--like prints similarities; to write embeddings with --output, remove --like",
        ),
        (
            ["--output", "x.npy", "--tokens"],
            "--output x.npy: numbers of tokens differ: use .jsonl with --tokens",
        ),
        (
            ["--like", "a", "--layers", "1"],
            "--like compares texts by one vector each: remove --tokens and --layers",
        ),
        (
            ["--tokens", "--pooling", "mean"],
            "--pooling makes one vector of a text, and --tokens writes one per token: remove one",
        ),
        (["--layers", "1;2"], "--layers: expected numbers such as 0,4 or -1, or all, not '1;2'"),
        (
            ["--layers", "0,3"],
            "layers: no layer 3; this model has 0 (its embeddings) to 2, or from the last -1 to -3",
        ),
        (
            ["--pooling", "average"],
            "pooling: 'average' is not one of mean, first, max, last, own; did you mean 'mean'?",
        ),
    ],
)
def test_mistakes_in_the_shell(
    place: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["embed", str(place), "a text", *options]) == 2
    assert capsys.readouterr().err == f"polyhead: {message}\n"


@pytest.mark.parametrize("layers", [None, [0, 2]])
def test_a_vector_per_token(
    place: Path, run: Run, capsys: pytest.CaptureFixture[str], layers: list[int] | None
) -> None:
    texts, file, out = ["the dog", "a cat runs"], place.parent / "texts.txt", place.parent / "tokens.jsonl"
    options = ["embed", str(place), str(file), "--tokens"]
    options += [] if layers is None else ["--layers", "0,-1"]
    wanted = run.embed_tokens(texts, layers=layers)
    assert main(options) == 0
    for block, one in zip(capsys.readouterr().out.split("\n\n")[:2], wanted, strict=True):
        lines = [line.split("\t") for line in block.splitlines()]
        vectors = one.vectors if layers is None else one.vectors.transpose(0, 1).flatten(0, 1)
        n = 1 if layers is None else len(layers)
        assert [line[0] for line in lines] == [token for token in one.tokens for _ in range(n)]
        assert layers is None or [int(line[1]) for line in lines] == layers * len(one.tokens)
        numbers = [[float(cell) for cell in line[1 if layers is None else 2 :]] for line in lines]
        np.testing.assert_allclose(numbers, vectors, atol=1e-5)
    assert main([*options, "--output", str(out)]) == 0
    for line, text, one in zip(out.read_text().splitlines(), texts, wanted, strict=True):
        row = json.loads(line)
        assert (row["text"], row["tokens"], row.get("layers")) == (text, one.tokens, layers)
        np.testing.assert_allclose(row["vectors"], one.vectors, atol=1e-6)


def test_a_vector_per_layer(place: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    texts, file, out = ["the dog", "a cat runs"], place.parent / "texts.txt", place.parent / "layers"
    options = ["embed", str(place), str(file), "--layers", "all", "--pooling", "max"]
    wanted = run.embed(texts, layers="all", pooling="max")
    assert main(options) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["0", "1", "2"] * 2
    found = [[float(cell) for cell in line[1:]] for line in lines]
    np.testing.assert_allclose(found, wanted.flatten(0, 1), atol=1e-5)
    assert main([*options, "--output", f"{out}.npy", "--read-batch", "1"]) == 0
    np.testing.assert_allclose(np.load(f"{out}.npy"), wanted, atol=1e-6)
    assert main([*options, "--output", f"{out}.jsonl"]) == 0
    rows = [json.loads(line) for line in Path(f"{out}.jsonl").read_text().splitlines()]
    assert [(row["text"], row["layers"]) for row in rows] == [(text, [0, 1, 2]) for text in texts]
    np.testing.assert_allclose([row["vectors"] for row in rows], wanted, atol=1e-6)


def test_truncated_texts_are_counted_for_tokens(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", str(place), "the dog sat " * 20, "--tokens"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 40 + 1
    assert "truncated to 40 tokens: 1 of 1 texts" in err

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

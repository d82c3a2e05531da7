"""Tests of cli/embedding_file.py."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluate.fill_mask_helpers import place as place
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.cli import main
from polyhead.run.run import Run


@pytest.mark.parametrize("kind", ["npy", "jsonl"])
def test_vectors_made_before_an_end_are_kept(
    place: Path, run: Run, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name, so that nobody takes them for all."""
    file, out = place.parent / "long.txt", place.parent / f"half.{kind}"
    part, options = out.with_name(f"{out.name}.part"), ["embed", str(place), str(file), "--output", str(out)]
    file.write_text("the dog\na cat runs\n" * 3)
    wanted, embed = run.embed(["the dog", "a cat runs"] * 3), Run.compute_embeddings

    def ends_behind(calls: int) -> None:
        left = iter([None] * (calls + 1))  # the first is without a text

        def embed_or_end(self: Run, texts: Sequence[str], **changes: Any) -> Any:
            if next(left, texts) is not None:
                raise KeyboardInterrupt
            return embed(self, texts, **changes)

        monkeypatch.setattr(Run, "compute_embeddings", embed_or_end)

    def read(path: Path) -> Any:
        if kind == "npy":
            return np.load(path.open("rb"))
        return [json.loads(line)["vector"] for line in path.read_text().splitlines()]

    ends_behind(2)
    assert main([*options, "--read-batch", "2"]) == 130
    assert f"the vectors of the first 4 texts are in {part}" in capsys.readouterr().err
    assert not out.exists()
    np.testing.assert_allclose(read(part), wanted[:4], atol=1e-6)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(Run, "compute_embeddings", embed)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (len(part.read_bytes()) + 10, limits[1])
    )  # as a disk that is full
    try:
        assert main([*options, "--read-batch", "2"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert f"the vectors of the first 4 texts are in {part}" in said
    assert f"polyhead: {part}: File too large" in said
    np.testing.assert_allclose(read(part), wanted[:4], atol=1e-6)
    ends_behind(0)
    assert main(options) == 130  # nothing was made
    assert not out.exists() and not part.exists()
    monkeypatch.setattr(Run, "compute_embeddings", embed)
    assert main([*options, "--read-batch", "4"]) == 0
    np.testing.assert_allclose(read(out), wanted, atol=1e-6)
    assert not part.exists()

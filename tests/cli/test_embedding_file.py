import json

import numpy as np
import pytest

from polyhead.run.run import Run

TEXTS = ["the dog", "a cat runs"] * 3


@pytest.mark.parametrize("kind", ["npy", "jsonl"])
def test_partial_output_has_its_own_name(encoder, kind, tmp_path, cli, monkeypatch, file_limit):
    """Of a verb that is interrupted, or whose disk is full (here: the largest allowed file)."""
    directory, run = encoder
    path, out = tmp_path / "texts.txt", tmp_path / f"out.{kind}"
    part, command = tmp_path / f"out.{kind}.part", ["embed", directory, path, "--output", out]
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    expected, compute = run.embed(TEXTS), Run.compute_embeddings

    def interrupt_after(calls):
        remaining = iter(range(calls + 1))  # the first call has no text

        def compute_or_interrupt(self, texts, **options):
            if next(remaining, None) is None:
                raise KeyboardInterrupt
            return compute(self, texts, **options)

        monkeypatch.setattr(Run, "compute_embeddings", compute_or_interrupt)

    def read(path):
        if kind == "npy":
            return np.load(path.open("rb"))
        return [json.loads(line)["vector"] for line in path.read_text().splitlines()]

    interrupt_after(2)
    err = cli(*command, "--read-batch", 2, code=130).err
    assert f"the vectors of the first 4 texts are in {part}" in err and not out.exists()
    np.testing.assert_allclose(read(part), expected[:4], atol=1e-6)

    monkeypatch.setattr(Run, "compute_embeddings", compute)
    with file_limit(part.stat().st_size + 10):
        err = cli(*command, "--read-batch", 2, code=1).err
    assert f"the vectors of the first 4 texts are in {part}" in err
    assert f"polyhead: {part}: File too large" in err
    np.testing.assert_allclose(read(part), expected[:4], atol=1e-6)

    interrupt_after(0)
    cli(*command, code=130)  # without any vector
    assert not out.exists() and not part.exists()
    monkeypatch.setattr(Run, "compute_embeddings", compute)
    cli(*command, "--read-batch", 4)
    np.testing.assert_allclose(read(out), expected, atol=1e-6)
    assert not part.exists()

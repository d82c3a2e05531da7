"""Tests of run/run_directory.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import edited, run
from tests.run.run_helpers import saved as saved

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError

GENERATION = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)


def test_equal_runs_are_equal_files(saved: Path, tmp_path: Path) -> None:
    for i in range(4):
        run().save(tmp_path / str(i), "# facts\n")
        for path in saved.iterdir():
            assert (tmp_path / str(i) / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.acceptance("A15")
@pytest.mark.parametrize(("tying", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_weights_are_on_disk_once_and_tied_when_read(tying: str, matrices: int, tmp_path: Path) -> None:
    ours = run(tie_embeddings=tying)
    ours.save(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
    assert shapes.count([ours.config.vocab_size, 16]) == matrices
    model = ph.load(tmp_path).model
    places = {
        p.data_ptr()
        for p in (
            model.encoder_embedding.token.weight,
            model.decoder_embedding.token.weight,
            model.head.weight,
        )
    }
    assert len(places) == matrices


def test_wrong_shapes_are_named(copy: Path) -> None:
    edited("config.json", d_ff=64)(copy)
    with pytest.raises(
        UserError, match=r"down_proj.weight' is torch.float32 \[16, 32\], expected torch.float32 \[16, 64\]; "
    ):
        ph.load(copy)


def test_what_hugging_face_adds_is_passed_over(copy: Path) -> None:
    edited("config.json", transformers_version="5.0", torch_dtype="float32")(copy)
    edited("generation_config.json", transformers_version="5.0")(copy)
    (copy / "README.md").unlink()
    assert ph.load(copy).generation == GENERATION
    (copy / "generation_config.json").unlink()
    assert ph.load(copy).generation == GenerationConfig()

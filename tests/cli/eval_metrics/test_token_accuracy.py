"""`polyhead eval` of models that learned to recover what is hidden: the figures that their training wrote
down.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.conftest import Notes

import polyhead as ph
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.train.run_training import run_training

NAMES = ["anna", "bert", "carl", "dora"]


@pytest.fixture(scope="module", params=["masked-lm", "denoising"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    for name, step in (("train", 1), ("test", 3)):
        lines = [f"{NAMES[i * step % 4]} and {NAMES[(i * step + i // 4 + 1) % 4]}\n" for i in range(60)]
        (directory / f"{name}.txt").write_text("".join(lines))
    recipe = {
        "task": request.param,
        "data": {
            "root": directory,
            "train": "train.txt",
            "valid_fraction": 0.2,
            "test": "test.txt",
            "document_separator": "line",
            "max_len": 32,
        },
        "tokenizer": {"kind": "char"},
        "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_len": 32},
        "train": {"steps": 5, "max_tokens": 256, "precision": "fp32"},
        "out": directory / "run",
    }
    run_training(Recipe.model_validate(recipe), report=Notes())
    return directory


def figures(text: str) -> dict[str, float]:
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines()}


def test_it_says_again_what_the_training_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = (place / "run/README.md").read_text()
    written = {
        row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1].removesuffix(" |")
        for row in card.splitlines()
        if row.startswith("| ")
    }
    for arguments, split in (
        ([], "test"),
        (["--split", "valid"], "valid"),
        ([str(place / "test.txt")], "test"),
    ):
        assert main(["eval", str(place / "run"), *arguments]) == 0
        found = figures(capsys.readouterr().out)
        assert found.keys() == {"loss", "perplexity", "accuracy"}
        assert found["accuracy"] == pytest.approx(float(written[f"{split} accuracy"]), abs=6e-4)
        assert found["loss"] == pytest.approx(float(written[f"{split} loss"]), abs=6e-4)


def test_several_together(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of the same are as one; of two that differ the loss is below the mean of theirs, for the logarithm
    is concave.
    """
    run = ph.load(place / "run")
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    run.save(tmp_path / "second")
    first, second = str(place / "run"), str(tmp_path / "second")
    losses = []
    for arguments in ([first], [second], [first, "--ensemble", first], [first, "--ensemble", second]):
        assert main(["eval", *arguments]) == 0
        losses.append(figures(capsys.readouterr().out)["loss"])
    assert losses[2] == losses[0]
    assert min(losses[:2]) - 0.7 < losses[3] < (losses[0] + losses[1]) / 2 - 0.05


def test_rows_are_as_long_as_every_model_can_read(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second has learned 12 positions: the two are measured as the first is in rows of 12, with its own
    mean beside.
    """
    run = ph.load(place / "run")
    assert run.recipe is not None
    config = run.config.model_copy(update={"position": Choice("learned"), "max_len": 12})
    Run(build(config, 1), run.tokenizer, run.generation, run.recipe).save(tmp_path / "short")
    narrow = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"max_len": 12})})
    Run(run.model, run.tokenizer, run.generation, narrow).save(tmp_path / "narrow")
    found = []
    for first, second in (("run", "short"), ("narrow", "short"), ("run", "run")):
        at = place if first == "run" else tmp_path
        other = tmp_path if second == "short" else place
        assert main(["eval", str(at / first), "--ensemble", str(other / second)]) == 0
        found.append(figures(capsys.readouterr().out))
    assert found[0] == found[1] != found[2]


def test_what_it_has_no_use_for_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(place / "run"), "--beam-size", "3"]) == 2
    assert (
        "--beam-size: of translations; this run is trained to predict masked or damaged tokens"
        in capsys.readouterr().err
    )


def test_an_encoder_without_a_recipe_says_that_nothing_is_measured(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (run := ph.load(place / "run")).config.kind != "encoder":
        pytest.skip("an encoder-decoder translates")
    run.recipe = None
    run.save(tmp_path / "bare")
    assert main(["eval", str(tmp_path / "bare"), str(place / "test.txt"), str(place / "test.txt")]) == 2
    assert "an encoder without a recipe, so the task to evaluate is unknown" in capsys.readouterr().err

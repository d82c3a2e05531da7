"""Plans from a sample of the text, against those of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import write_table

from polyhead.config.config_sections import DistillConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.estimate import data_sample
from polyhead.estimate.plan import estimate
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_len": 256}
TRAIN = {"epochs": 1, "max_tokens": 1024, "precision": "fp32"}
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "fish",
    "sees",
    "eats",
    "likes",
    "hates",
    "red",
    "blue",
    "big",
    "small",
    "now",
    "here",
    "there",
    "very",
    "old",
    "new",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to stand in, where no more than 40 kB are read whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", 40_000)
    return tmp_path


def rows(n: int, least: int = 4, most: int = 9, seed: int = 1) -> list[str]:
    """Lines of so many words."""
    bits = np.random.default_rng(seed)
    return [" ".join(bits.choice(WORDS, bits.integers(least, most))) for _ in range(n)]


def recipe(task: str, train: list[str], valid: list[str], **sections: Any) -> Recipe:
    data = {"train": train, "valid": valid, "max_len": 32} | sections.pop("data", {})
    return Recipe.model_validate(
        {"task": task, "data": data, "tokenizer": {"kind": "char"}, "model": MODEL, "train": TRAIN} | sections
    )


def both(asked: Recipe, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The plan of a sample, and that of the whole text."""
    part = estimate(asked, probe=False)
    with monkeypatch.context() as patch:
        patch.setattr(data_sample, "_MAX_SPLIT_BYTES", 1 << 30)
        return part, estimate(asked, probe=False)


def check(part: Any, whole: Any) -> None:
    """The sample is one, says so, and gives the plan of the whole."""
    assert part.text["looked_at"] < 0.5 < whole.text["looked_at"] == 1
    assert any("extrapolated" in note for note in part.notes)
    assert part.text["bytes"] == whole.text["bytes"]
    assert part.batches == pytest.approx(whole.batches, rel=0.1)
    assert part.steps == pytest.approx(whole.steps, rel=0.1)
    assert part.labels == pytest.approx(whole.labels, rel=0.1)


@pytest.mark.parametrize("train", [["few.txt", "many.txt"], ["many.txt", "few.txt"]])
def test_the_order_of_files_is_all_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch, train: list[str]
) -> None:
    """A file of fewer lines than stay together says nothing of one beside it."""
    for name, n in (("few", 200), ("many", 8000), ("valid", 40)):
        Path(f"{name}.txt").write_text("".join(f"{row}\n" for row in rows(n)))
    part, whole = both(recipe("language-model", train, ["valid.txt"]), monkeypatch)
    check(part, whole)
    assert part.text["lines"] == 8200
    assert part.text["looked_at"] == pytest.approx(40_000 / part.text["bytes"], rel=0.1)


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_a_sample_has_all_bytes_and_characters(
    home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of pieces the whole text may have as many as are asked for."""
    for name, n in (("t", 3000), ("v", 40)):
        Path(f"{name}.txt").write_text("".join(f"{row}\n" for row in rows(n)))
    tokenizer = {"kind": kind, "vocab_size": 600}
    part, whole = both(recipe("language-model", ["t.txt"], ["v.txt"], tokenizer=tokenizer), monkeypatch)
    more = part.parameters - whole.parameters
    assert more > 0 if kind == "bpe" else more == 0


@pytest.mark.parametrize("train", [["long.tsv", "short.tsv"], ["short.tsv", "long.tsv"]])
def test_every_file_gives_its_share(home: Path, monkeypatch: pytest.MonkeyPatch, train: list[str]) -> None:
    """Bytes say little where a few texts are so long that most of each is cut."""
    for name, given in (("long", rows(200, 200, 300)), ("short", rows(6000, 2, 4)), ("valid", rows(40))):
        lines = "".join(f"{row}\t{'red' if 'red' in row else 'other'}\n" for row in given)
        Path(f"{name}.tsv").write_text("text\tlabel\n" + lines)
    check(*both(recipe("classification", train, ["valid.tsv"]), monkeypatch))


def test_a_sample_of_parquet_is_lines_of_json(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given in (("t", rows(5000)), ("v", rows(40))):
        labels = ["red" if "red" in row else "other" for row in given]
        write_table(pyarrow.table({"text": given, "label": labels}), f"{name}.parquet")
    check(*both(recipe("classification", ["t.parquet"], ["v.parquet"]), monkeypatch))


def test_parallel_files_are_sampled_line_by_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though one side has far more bytes than the other."""
    given = rows(3000)
    for name, side in (("t.en", given), ("t.de", [f"{row} {row[::-1]} {row}" for row in given])):
        Path(name).write_text("".join(f"{row}\n" for row in side))
        Path(f"v{name[1:]}").write_text("".join(f"{row}\n" for row in side[:20]))
    asked = recipe("translation", ["t.en", "t.de"], ["v.en", "v.de"], data={"max_len": 256})
    folder = home / "sample"
    sides = [
        Path(name).read_text().splitlines()
        for name in data_sample._sample_files(asked.data.split_paths("train"), folder).names
    ]
    assert 0 < len(sides[0]) < 1000
    assert sides[1] == [f"{row} {row[::-1]} {row}" for row in sides[0]]
    check(*both(asked, monkeypatch))


BPE = {"kind": "bpe", "vocab_size": 300}


@pytest.fixture
def uneven(home: Path) -> Path:
    """A text with words and a class of their own in a stretch of which a sample sees nothing."""
    given = rows(4000)
    given[260:300] = [row.upper() for row in given[260:300]]
    Path("t.txt").write_text("".join(f"{row}\n" for row in given))
    labelled = [f"{row}\t{'rare' if row.isupper() else 'xy'[i % 2]}\n" for i, row in enumerate(given)]
    Path("t.tsv").write_text("text\tlabel\n" + "".join(labelled))
    Path("v.txt").write_text("".join(f"{row}\n" for row in given[290:310]))
    Path("v.tsv").write_text("text\tlabel\n" + "".join(labelled[290:310]))
    return home


def taught(task: str, tokenizer: dict[str, Any], labels: tuple[str, ...] = (), **distill: Any) -> Recipe:
    """A recipe whose teacher is saved here, with a tokenizer of the whole text."""
    ends = "tsv" if task == "classification" else "txt"
    asked, theirs = (recipe(task, [f"t.{ends}"], [f"v.{ends}"], tokenizer=one) for one in (BPE, tokenizer))
    own = train_tokenizer(
        TASK.get(task).iter_texts(theirs), theirs.tokenizer.kind, theirs.tokenizer.vocab_size
    )
    config = asked.model.with_vocabulary(own.vocab_size, labels)
    Run(build(config, 1), own, GenerationConfig()).save(Path("teacher"))
    return asked.model_copy(update={"distill": DistillConfig(teacher=["teacher"], **distill)})


def test_a_teacher_tells_which_tokens_there_are(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the sample are others, and training would take none of them."""
    part, whole = both(taught("language-model", BPE), monkeypatch)
    check(part, whole)
    assert part.parameters == whole.parameters
    assert part.memory == whole.memory
    assert "a sample does not tell the tokens of the whole text: those of teacher are assumed" in part.notes
    assert not whole.notes


@pytest.mark.parametrize("tokenizer", [{"kind": "char"}, {"kind": "bpe", "vocab_size": 301}], ids=str)
def test_a_teacher_of_tokens_that_a_student_cannot_have_is_refused(
    uneven: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: dict[str, Any]
) -> None:
    asked = taught("language-model", tokenizer)
    for most in (data_sample._MAX_SPLIT_BYTES, 1 << 30):
        monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", most)
        with pytest.raises(UserError, match="teacher has another tokenizer than the student"):
            estimate(asked, probe=False)


@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_a_teacher_tells_which_classes_there_are(
    uneven: Path, monkeypatch: pytest.MonkeyPatch, hidden: float
) -> None:
    """One that is not in the sample counts, and is no mistake."""
    part, whole = both(taught("classification", BPE, ("rare", "x", "y"), hidden=hidden), monkeypatch)
    check(part, whole)
    assert part.parameters == whole.parameters


def test_a_teacher_of_other_tokens_reads_for_itself(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, whole = both(taught("classification", {"kind": "char"}, ("rare", "x", "y")), monkeypatch)
    check(part, whole)
    assert (part.parameters, part.memory.teachers) == (whole.parameters, whole.memory.teachers)
    assert len(part.notes) == 1


def test_a_teacher_who_lacks_a_class_is_refused(uneven: Path) -> None:
    with pytest.raises(UserError, match="the classes of teacher are rare, x, not x, y"):
        estimate(taught("classification", BPE, ("rare", "x")), probe=False)


def test_columns_that_the_test_text_alone_has_are_planned_as_they_are_trained(home: Path) -> None:
    for name in ("train", "valid"):
        for side in ("en", "de"):
            Path(f"{name}.{side}").write_text("".join(f"{line}\n" for line in rows(20)))
    Path("test.tsv").write_text("".join(f"x\t{line}\t{line}\n" for line in rows(5)))
    columns = {"source": 1, "target": 2}
    data = {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"], "test": ["test.tsv"]}
    tree: dict[str, Any] = {
        "data": data | columns,
        "tokenizer": {"kind": "char"},
        "model": MODEL,
        "train": TRAIN,
    }
    recipe = Recipe.model_validate(tree)
    TASK.get(recipe.task.name).check(recipe)  # as training does
    assert data_sample.open_data_sample(recipe, None, home / "a").lines == 20
    with pytest.raises(UserError, match="leave out data"):
        data_sample.open_data_sample(
            Recipe.model_validate(tree | {"data": data | columns | {"test": None}}), None, home / "b"
        )
    Path("test.tsv").rename("elsewhere")  # what is measured at the end costs nothing before
    later = Recipe.model_validate(tree | {"data": data})
    assert data_sample.open_data_sample(later, None, home / "c").lines == 20

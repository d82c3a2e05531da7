"""From files to a recipe: what is found in them, what is proposed, and that it trains."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from polyhead.autoconfig.inspect_data import DataSummary, inspect_data
from polyhead.autoconfig.propose_recipe import (
    LABELED_SIZES,
    PAIR_SIZES,
    TEXT_SIZES,
    propose_recipe,
    render_recipe,
)
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe, load_recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

WORDS = "the cat a dog sees bites and loves no bird that sings here".split()  # noqa: SIM905
DRAWN = random.Random(1)
SENTENCES = [" ".join(DRAWN.choices(WORDS, k=6)) for _ in range(60)]
LABELS = ["good" if i % 3 else "bad" for i in range(60)]


def table(place: Path, name: str, rows: Sequence[dict[str, Any]]) -> str:
    path = place / name
    columns = list(rows[0])
    if name.endswith(".jsonl"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        part = "," if ".csv" in name else "\t"
        head = [] if ".bare" in name else [columns]
        text = "".join(
            part.join(map(str, cells)) + "\n" for cells in [*head, *(row.values() for row in rows)]
        )
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return name


REVIEWS = [{"id": i, "review": s, "stars": k} for i, (s, k) in enumerate(zip(SENTENCES, LABELS, strict=True))]
PAIRED = [{"premise": s, "hypothesis": f"so {s}", "label": i % 3} for i, s in enumerate(SENTENCES)]
MEANT = [{"en": s, "de": s.replace("the", "der")} for s in SENTENCES]
INNER = [{"translation": one, "id": i} for i, one in enumerate(MEANT)]
STORIES = [{"title": f"no {i}", "n": i, "text": f"{s}\n{s}"} for i, s in enumerate(SENTENCES)]
TALKS = [
    {"messages": [{"role": "user", "content": s}, {"role": "assistant", "content": "yes"}]} for s in SENTENCES
]


@pytest.mark.parametrize(
    ("name", "rows", "task", "data"),
    [
        ("a.csv", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("a.tsv.gz", REVIEWS, "classification", {"text": "review", "label": "stars"}),
        ("a.bare.tsv", REVIEWS, "classification", {"text": 1, "label": 2}),
        ("a.parquet", PAIRED, "classification", {"text": ["premise", "hypothesis"], "label": "label"}),
        ("a.bare.tsv", MEANT, "translation", {"source": 0, "target": 1}),
        ("a.jsonl", MEANT, "translation", {"source": "en", "target": "de", "source_lang": "en", "target_lang": "de"}),
        ("a.jsonl", INNER, "translation", {"source": "translation.en", "target": "translation.de",
                                           "source_lang": "en", "target_lang": "de"}),
        ("a.parquet", [{"story": s} for s in SENTENCES], "language-model", {"text": "story"}),
        ("a.jsonl", TALKS, "chat", {}),
    ],
)  # fmt: skip
def test_the_columns_of_a_table_tell_what_it_is(
    name: str, rows: list[dict[str, Any]], task: str, data: dict[str, Any], tmp_path: Path
) -> None:
    found = inspect_data([table(tmp_path, name, rows)], {"root": tmp_path})
    assert found.task == task
    roles = {key: value for key, value in found.data.items() if key not in ("root", "train", "valid_share")}
    assert roles == data
    assert (found.rows, found.is_complete) == (60, True)
    texts = [value for row in rows for value in row.values() if isinstance(value, str) and value in SENTENCES]
    assert found.size >= sum(len(text.encode()) for text in texts)
    assert found.labels == (0 if task != "classification" else 3 if rows is PAIRED else 2)


@pytest.mark.parametrize(
    ("column", "task"),
    [("paid", "classification"), ("valid", "classification"), ("user_id", "language-model"), ("userId", "language-model"),
     ("ID", "language-model")],
)  # fmt: skip
def test_what_numbers_things_is_no_label(column: str, task: str, tmp_path: Path) -> None:
    rows = [{"note": sentence, column: i % 2} for i, sentence in enumerate(SENTENCES)]
    assert inspect_data([table(tmp_path, "a.csv", rows)], {"root": tmp_path}).task == task


def test_a_column_that_is_called_text_is_one_whatever_it_holds(tmp_path: Path) -> None:
    names = [{"text": f"Anna{i}", "label": "mf"[i % 2]} for i in range(60)]
    found = inspect_data([table(tmp_path, "names.jsonl", names)], {"root": tmp_path})
    assert (found.task, found.data["text"], found.labels) == ("classification", "text", 2)
    numbers = [{"text": i, "label": "mf"[i % 2]} for i in range(60)]
    with pytest.raises(UserError, match="it is not clear which are meant"):
        inspect_data([table(tmp_path, "numbers.jsonl", numbers)], {"root": tmp_path})


def test_what_is_said_of_columns_goes_before_what_is_found(tmp_path: Path) -> None:
    three = table(tmp_path, "three.jsonl", [{"a": s, "b": f"{s}.", "c": f"{s}!"} for s in SENTENCES])
    with pytest.raises(
        UserError, match=r"three.jsonl has the columns a, b, c: it is not clear which are meant; name them"
    ):
        inspect_data([three], {"root": tmp_path})
    assert inspect_data([three], {"root": tmp_path, "text": "b"}).task == "language-model"
    file = table(tmp_path, "a.jsonl", STORIES)
    assert inspect_data([file], {"root": tmp_path}).data["text"] == "text"
    found = inspect_data([file], {"root": tmp_path, "text": "title"})
    assert (found.task, found.data["text"]) == ("language-model", "title")
    two = table(tmp_path, "two.jsonl", [{"article": f"{s} {s}", "summary": s} for s in SENTENCES])
    for given, other in (
        ({"source": "summary"}, {"target": "article"}),
        ({"target": "article"}, {"source": "summary"}),
    ):
        found = inspect_data([two], {"root": tmp_path} | given)
        assert (given | other).items() <= found.data.items()
    found = inspect_data([file], {"root": tmp_path, "source": "text", "target": "title"})
    assert (found.task, found.rows) == ("translation", 60)
    assert inspect_data([file], {"root": tmp_path}, "masked-lm").data["text"] == "text"
    reviews = table(tmp_path, "b.jsonl", REVIEWS)
    assert inspect_data([reviews], {"root": tmp_path}, "language-model").data["text"] == "review"
    with pytest.raises(UserError, match=r"none has few values that come often; say which is the label"):
        inspect_data([table(tmp_path, "c.jsonl", MEANT)], {"root": tmp_path}, "classification")
    with pytest.raises(
        UserError, match=r"unknown task that recipes are written for 'clasification'; did you mean"
    ):
        inspect_data([file], {"root": tmp_path}, "clasification")


def test_labels_may_be_whole_numbers_of_any_kind_but_scores_and_lists_are_told(tmp_path: Path) -> None:
    root = {"root": tmp_path}

    def labelled(*kinds: Any) -> str:
        rows = [
            {"sentence1": s, "sentence2": f"so {s}", "label": kinds[i % len(kinds)]}
            for i, s in enumerate(SENTENCES)
        ]
        return table(tmp_path, "a.jsonl", rows)

    assert inspect_data([labelled(0.0, 1.0)], root).labels == 2  # as columns with gaps come
    for kinds, shown in (((3.25, 1.0), r"3\.25"), (([1], [2, 3]), r"\[1\]")):
        file = labelled(*kinds)
        with pytest.raises(
            UserError, match=rf"a.jsonl: 'label' holds {shown}, and a label is text, a whole number"
        ):
            inspect_data([file], root)
        assert inspect_data([file], root | {"text": "sentence1"}).task == "language-model"


@pytest.mark.parametrize(("names", "rows", "data"), [
    (["phrase", "polarity"], zip(SENTENCES, LABELS, strict=True), {"text": "phrase", "label": "polarity"}),
    (["en", "de"], zip(SENTENCES, SENTENCES, strict=True),
     {"source": "en", "target": "de", "source_lang": "en", "target_lang": "de"}),
    (["so so", f"{SENTENCES[0]}, {SENTENCES[0]}"], zip(LABELS[1:], SENTENCES[1:], strict=True), {"text": 1, "label": 0}),
    (["bad", SENTENCES[0]], zip(LABELS[1:], SENTENCES[1:], strict=True), {"text": 1, "label": 0}),
])  # fmt: skip
def test_a_tsv_may_have_a_header_of_any_names(
    names: list[str], rows: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in [names, *rows]))
    found = inspect_data(["a.tsv"], {"root": tmp_path})
    assert found.rows == 60
    assert data.items() <= found.data.items()


def test_a_csv_without_a_header_is_told(tmp_path: Path) -> None:
    rows = "".join(f"{label},{text}\n" for label, text in zip(LABELS, SENTENCES, strict=True))
    (tmp_path / "a.csv").write_text(rows)
    with pytest.raises(
        UserError, match=r"a.csv: the first row of a CSV names its columns, and 'bad' stands below"
    ):
        inspect_data(["a.csv"], {"root": tmp_path})
    (tmp_path / "a.csv").write_text("polarity,phrase\n" + rows)
    assert inspect_data(["a.csv"], {"root": tmp_path}).data["label"] == "polarity"


def test_a_json_list_is_told_and_rows_may_be_long(tmp_path: Path) -> None:
    root = {"root": tmp_path}
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(REVIEWS, indent=indent))
        with pytest.raises(UserError, match=r"a.json is one JSON list; .*jq -c '.\[\]' a.json > a.jsonl"):
            inspect_data(["a.json"], root)
    books = table(tmp_path, "books.jsonl", [{"text": f"{i} is so long " * (1 << 17)} for i in range(3)])
    found = inspect_data([books], root)
    assert (found.task, found.rows) == ("language-model", 3)


def test_an_instruction_and_its_input_are_not_one_of_them_alone(tmp_path: Path) -> None:
    root = {"root": tmp_path}

    def asked(inputs: Sequence[str]) -> str:
        rows = [
            {"instruction": f"say {s}", "input": i, "output": s}
            for s, i in zip(SENTENCES, inputs, strict=True)
        ]
        return table(tmp_path, "a.jsonl", rows)

    data = inspect_data([asked([""] * 60)], root).data
    assert (data["source"], data["target"]) == ("instruction", "output")
    for file in (asked(SENTENCES), asked([*SENTENCES[:6], *[""] * 54])):
        with pytest.raises(
            UserError, match=r"a.jsonl: each of instruction, input may be the source: make one column"
        ):
            inspect_data([file], root)
        data = inspect_data([file], root | {"source": "instruction"}).data
        assert (data["source"], data["target"]) == ("instruction", "output")


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., list[str]]:
    def write(**files: Sequence[str]) -> list[str]:
        for name, lines in files.items():
            (tmp_path / name.replace("_", ".")).write_text("".join(f"{line}\n" for line in lines))
        return [name.replace("_", ".") for name in files]

    return write


def test_plain_text_is_a_language_model_or_the_sides_of_a_translation(
    plain: Callable[..., list[str]], tmp_path: Path
) -> None:
    root = {"root": tmp_path}
    assert inspect_data(plain(a_txt=SENTENCES), root).task == "language-model"
    assert inspect_data(plain(a_txt=SENTENCES, b_txt=SENTENCES[1:]), root).task == "language-model"
    found = inspect_data(plain(a_txt=SENTENCES, b_txt=SENTENCES), root)
    assert (found.task, "source_lang" in found.data) == ("translation", False)
    found = inspect_data(plain(train_en=SENTENCES, train_de=SENTENCES), root)
    assert (found.data["source_lang"], found.data["target_lang"]) == ("en", "de")
    with pytest.raises(UserError, match=r"train.en has 60 lines and train.de has 59"):
        inspect_data(plain(train_en=SENTENCES, train_de=SENTENCES[1:]), root)
    with pytest.raises(
        UserError, match=r"task classification wants a table, TSV, CSV, JSONL or Parquet; a.txt is plain text"
    ):
        inspect_data(["a.txt"], root, "classification")
    with pytest.raises(UserError, match=r"task translation wants a source and a target file.*; got 1: a.txt"):
        inspect_data(["a.txt"], root, "translation")
    with pytest.raises(UserError, match=r"got 3: a.txt, b.txt, train.en"):
        inspect_data(["a.txt", "b.txt", "train.en"], root, "translation")
    found = inspect_data(plain(a_md=SENTENCES, b_md=SENTENCES), root)  # "md" is no language here
    assert (found.task, "source_lang" in found.data) == ("translation", False)


def test_files_beside_are_what_it_is_measured_on(plain: Callable[..., list[str]], tmp_path: Path) -> None:
    root = {"root": tmp_path}
    files = plain(train_en=SENTENCES, train_de=SENTENCES)
    assert inspect_data(files, root).data["valid_share"] == 0.1
    plain(dev_en=SENTENCES)  # one side alone is none
    assert "valid" not in inspect_data(files, root).data
    plain(dev_de=SENTENCES, test_en=SENTENCES, test_de=SENTENCES)
    data = inspect_data(files, root).data
    assert (data["valid"], data["test"]) == (["dev.en", "dev.de"], ["test.en", "test.de"])
    for file in files:
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress((tmp_path / file).read_bytes()))
    assert inspect_data([f"{file}.gz" for file in files], root).data["valid"] == [
        "dev.en",
        "dev.de",
    ]  # short, not packed
    assert inspect_data(files, root | {"valid_share": 0.3}).data.keys() & {"valid", "test"} == set()
    train = table(
        tmp_path, "train.tsv", [{"label": k, "sentence": s} for s, k in zip(SENTENCES, LABELS, strict=True)]
    )
    table(tmp_path, "test.tsv", [{"index": 1, "sentence": s} for s in SENTENCES])  # without labels
    assert inspect_data([train], root).data.keys() & {"valid", "test"} == set()


@pytest.mark.parametrize(("task", "sizes", "sides"), [("translation", PAIR_SIZES, 2), ("language-model", TEXT_SIZES, 1),
                                                      ("masked-lm", TEXT_SIZES, 1), ("classification", LABELED_SIZES, 1)])  # fmt: skip
def test_more_text_is_given_a_larger_model_and_so_many_passes(
    task: str, sizes: list[Any], sides: int
) -> None:
    parameters: list[int] = []
    for size in sizes:
        bytes_ = min(size.max_bytes, 1e11)
        found = DataSummary(task, {"train": ["a"], "valid_share": 0.1}, 1000, int(bytes_), [80] * 1000)
        tree = propose_recipe(found)
        recipe = Recipe.model_validate(tree)
        model, train = recipe.model, recipe.train
        assert train.steps is not None
        parameters.append(model.n_layers * model.d_model**2)
        passes = train.steps * train.max_tokens / (bytes_ / 4 / sides)
        assert passes == pytest.approx(size.epochs, rel=0.06)
        assert train.schedule.options["warmup"] < train.steps / 2
        assert train.eval_every <= train.steps
        assert recipe.data.max_len >= 80 / 4 * 1.5
    assert parameters == sorted(parameters)


@pytest.mark.parametrize("typed", [
    ["train.en", "train.de"], ["stories.txt"], ["stories.txt", "task=masked-lm"], ["a.csv", "data.text=review"],
])  # fmt: skip
def test_what_is_proposed_can_be_trained(
    typed: list[str], plain: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    plain(train_en=SENTENCES * 3, train_de=SENTENCES * 3, stories_txt=SENTENCES * 30)
    table(tmp_path, "a.csv", REVIEWS)
    assert main(["recipe", *typed, "train.seed=7"]) == 0
    said = capsys.readouterr().out
    assert main(["recipe", *typed, "train.seed=7", "--output", "mine.yaml"]) == 0
    assert Path("mine.yaml").read_text() == said
    assert "mine.yaml; train it: polyhead train mine.yaml" in capsys.readouterr().err
    assert load_recipe("mine.yaml").train.seed == 7
    assert main(["train", "mine.yaml", "train.steps=2", "train.max_tokens=1024", "train.threads=1"]) == 0
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()


def test_what_is_given_stands_in_the_recipe_and_mistakes_are_told_before_anything_is_written(
    plain: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(a_txt=SENTENCES)
    assert (
        main(["recipe", "a.txt", "model.position=alibi", "tokenizer.kind=char", "data.documents=line"]) == 0
    )
    told = capsys.readouterr().out
    assert "  position: alibi\n" in told and "  kind: char\n" in told and "  documents: line\n" in told
    assert told.startswith("# A language model: 60 documents, 1.6 kB of text (a.txt).\n")
    for typed, message in (
        (["a.txt", "model.positon=rope"], "model.positon: unknown key; did you mean 'position'?"),
        (["b.txt"], "no file 'b.txt' in '.'; did you mean 'a.txt'?"),
        (["task=chat"], "name the files to learn from: polyhead recipe train.en train.de"),
        (["a.txt", "--output", "a.txt"], "--output a.txt is what is read here"),
        (["a.txt", "--output", "old.yaml"], "--output old.yaml is there already; name another file"),
    ):
        Path("old.yaml").write_text("kept")
        assert main(["recipe", *typed]) == 2
        out, err = capsys.readouterr()
        assert (out, message in err, err.count("\n")) == ("", True, 1), err
    assert Path("old.yaml").read_text() == "kept"


@pytest.mark.parametrize("typed", [["a.en", "a.zh"], ["a.zh"]])
def test_a_tokenizer_of_characters_has_room_for_each_character_of_the_text(
    typed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ideographs = [chr(0x4E00 + i) for i in range(2500)]
    Path("a.zh").write_text("".join("".join(ideographs[i : i + 25]) + "\n" for i in range(0, 2500, 25)))
    Path("a.en").write_text("abcde\n" * 100)
    given = ["tokenizer.kind=char", f"data.valid=[{','.join(typed)}]"]
    assert main(["recipe", *typed, *given]) == 0
    characters = set("".join(Path(name).read_text().replace("\n", "") for name in typed))
    proposed = yaml.safe_load(capsys.readouterr().out)["tokenizer"]["vocab_size"]
    assert 0 < proposed - len(characters) <= 6, "the special tokens, and the end of a line"
    assert main(["recipe", *typed, *given, "tokenizer.vocab_size=700"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["tokenizer"]["vocab_size"] == 700


def test_text_beyond_what_is_read_is_taken_to_be_alike(
    plain: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead.autoconfig.inspect_data._MAX_BYTES", 500)
    files = plain(train_en=SENTENCES, train_de=SENTENCES)
    found = inspect_data(files, {"root": str(tmp_path)})
    assert not found.is_complete and found.rows < 60
    assert found.size == sum((tmp_path / file).stat().st_size for file in files)
    assert "pairs" not in render_recipe(propose_recipe(found), found, "x.yaml").splitlines()[0]


def test_one_long_document_is_not_read_to_its_end(
    plain: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyhead.autoconfig.inspect_data._MAX_BYTES", 1 << 17)
    plain(train_txt=SENTENCES * 400)
    with (tmp_path / "train.txt").open("ab") as file:
        file.write(b"\xff" * 10)  # which nobody gets to
    found = inspect_data(["train.txt"], {"root": tmp_path})
    assert not found.is_complete and found.lengths[0] < 1 << 18
    assert found.size == (tmp_path / "train.txt").stat().st_size


def test_what_is_proposed_gives_way_to_what_is_given() -> None:
    pairs = DataSummary("translation", {"train": ["a"], "valid_share": 0.1}, 1000, 10**6, [80] * 1000)
    whole = propose_recipe(pairs)

    def train(**keys: Any) -> Any:
        return propose_recipe(pairs, {f"train.{key}": value for key, value in keys.items()})["train"]

    assert train(max_tokens=4 * 2048)["steps"] == pytest.approx(whole["train"]["steps"] / 4, rel=0.05)
    few = train(steps=3)
    assert (few["steps"], few["eval_every"], few["schedule"]["warmup"]) == (3, 3, 2)
    passes = train(epochs=3)
    assert "steps" not in passes and passes["schedule"]["warmup"] < whole["train"]["schedule"]["warmup"]
    assert train(steps="many") == whole["train"]  # which the recipe refuses
    wide = propose_recipe(pairs, {"model.d_model": 512})
    assert (wide["train"]["lr"], wide["model"]["d_ff"]) == (0.0007, 2048)
    assert propose_recipe(pairs, {"model.preset": "base"})["model"] == {}
    started = propose_recipe(pairs, {"start.run": "runs/a"})
    assert not {"tokenizer", "model"} & started.keys()


def test_answers_that_are_several_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text has one label here; which of several is meant nobody asked, and what became of the table was a language model in silence."""
    flags = [
        {"id": i % 9, "text": s, "toxic": i % 2, "threat": int(i % 3 == 0)} for i, s in enumerate(SENTENCES)
    ]
    tags = [{"text": s, "tags": [LABELS[i]], "vector": [i / 7, s[0]]} for i, s in enumerate(SENTENCES)]
    each = "toxic and threat may each be a label, and a text has one: data.label=toxic makes a classifier of that."
    several = "tags has several labels of a text, and one is learned: write each into a column of its own, yes or no."
    for rows, note in ((flags, each), (tags, several)):
        file = str(tmp_path / table(tmp_path, "a.jsonl", rows))
        found = inspect_data([file], {})
        assert (found.task, found.notes) == ("language-model", [note])
        for way in (
            inspect_data([file], {"text": "text"}),
            inspect_data([file], {}, "language-model"),
            inspect_data([file], {}, "masked-lm"),
        ):
            assert way.notes == []
        assert main(["recipe", file]) == 0
        assert capsys.readouterr().out.splitlines()[1] == f"# {note}"
        assert main(["recipe", file, "--output", str(tmp_path / f"{note[:5]}.yaml")]) == 0
        assert capsys.readouterr().err.splitlines()[1] == note
    assert inspect_data([table(tmp_path, "b.jsonl", STORIES)], {"root": tmp_path}).notes == []


def test_the_rate_is_that_of_the_optimizer_that_is_given() -> None:
    """What suits Muon is too much for AdamW."""
    plain = DataSummary("language-model", {"train": ["a"], "valid_share": 0.1}, 1000, 10**7, [80] * 1000)
    hidden = DataSummary("masked-lm", {"train": ["a"], "valid_share": 0.1}, 1000, 10**7, [80] * 1000)

    def rate(found: DataSummary, **keys: Any) -> Any:
        return propose_recipe(found, {key.replace("_", "."): value for key, value in keys.items()})["train"][
            "lr"
        ]

    assert (
        (rate(plain), rate(hidden)) == (0.006, 0.004) == (rate(plain, train_optimizer="muon"), rate(hidden))
    )
    for given in ({"train_optimizer": "adamw"}, {"train_optimizer": {"name": "adamw", "beta1": 0.8}}):
        assert (rate(plain, **given), rate(hidden, **given)) == (0.002, 0.001)
    assert rate(plain, train_optimizer_name="adamw") == 0.002


def test_a_recipe_that_begins_with_a_run_can_be_trained(
    plain: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(a_txt=SENTENCES * 30)
    for name, keys in (("first", ["model.preset=tiny"]), ("then", ["start=runs/first"])):
        assert main(["recipe", "a.txt", *keys, "train.steps=2", "--output", f"{name}.yaml"]) == 0
        assert main(["train", f"{name}.yaml", "train.threads=1"]) == 0
    assert "that can write already" not in Path("then.yaml").read_text()
    for key, message in (("data.train=b.txt", "data.train is what is looked at, a.txt: leave the key out"),
                         ("data.valid=b.txt", "data.valid: no file 'b.txt'")):  # fmt: skip
        capsys.readouterr()
        assert main(["recipe", "a.txt", key]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("special", "chat"), [(["<|im_start|>", "<|im_end|>"], "chatml"), ([], "plain")])
def test_a_conversation_is_of_the_format_and_the_length_of_its_start(
    special: list[str], chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer(SENTENCES, Choice("bpe"), 300)
    tokenizer._inner.add_special_tokens(special)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 96}
    Run(build(ModelConfig(kind="decoder", **sizes)), tokenizer, GenerationConfig()).save("writer")
    talks = table(tmp_path, "talks.jsonl", TALKS)
    assert main(["recipe", talks, "start=writer", "--output", "mine.yaml"]) == 0
    recipe = load_recipe("mine.yaml")
    assert recipe.generation.chat is not None
    assert (recipe.generation.chat.name, recipe.data.max_len) == (chat, 96)
    assert main(["train", "mine.yaml", "train.steps=2", "train.epochs=null"]) == 0
    found = propose_recipe(inspect_data([talks], {"root": tmp_path}), {"start": "HuggingFaceTB/SmolLM2-135M"})
    assert (found["generation"]["chat"], found["data"]["max_len"]) == ("chatml", 512)


def test_what_is_said_of_a_recipe_can_be_typed(
    plain: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(one_en=SENTENCES[:1], one_de=SENTENCES[:1])
    assert main(["recipe", "one.en", "one.de", "--output", "my own.yaml"]) == 0
    assert "train it: polyhead train 'my own.yaml'" in capsys.readouterr().err
    first, *more = Path("my own.yaml").read_text().splitlines()
    assert first == "# A translator: 1 pair, 0.1 kB of text (one.en, one.de)."
    assert more[0].startswith("# exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'")
    assert more[2] == "# polyhead train 'my own.yaml'"


def test_two_files_that_are_no_sides_of_translations_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a dog barks .\n" * 40)
    Path("b.txt").write_text("a cat sleeps .\n" * 39)
    note = (
        "taken for plain text of one language model: a.txt has 40 lines and b.txt 39 lines, "
        "and two sides of translations have as many, two or more"
    )
    assert main(["recipe", "a.txt", "b.txt"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[1] == f"# {note}"
    assert told.err.startswith(f"polyhead: {note}\npolyhead: exports: Hugging Face, ")
    assert main(["recipe", "a.txt", "b.txt", "--output", "mine.yaml"]) == 0
    assert capsys.readouterr().err.splitlines()[1] == note
    assert main(["recipe", "a.txt", "b.txt", "task=language-model"]) == 0
    assert main(["recipe", "a.txt", "a.txt", "b.txt"]) == 0
    Path("b.txt").write_text("ein hund bellt .\n" * 40)
    assert main(["recipe", "a.txt", "b.txt"]) == 0
    told_last = capsys.readouterr().err.splitlines()
    assert len(told_last) == 3 and all(line.startswith("polyhead: exports: ") for line in told_last)

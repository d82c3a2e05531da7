"""Likelihoods of texts, against one token after another."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import pytest
import torch

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import open_text
from polyhead.generation.prompt_template import get_prompt_template
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = ["anna and bert", "carl", "", "dora and emil and anna"]


def made(directory: Path, documents: str | None) -> Path:
    """An untrained run on names, with the recipe of its training or without."""
    tokenizer = train_tokenizer([line + "\n" for line in LINES] * 5, Choice("bpe"), 280)
    config = ModelConfig(
        kind="decoder", vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, max_len=24
    )
    (directory / "names.txt").write_text("\n".join(LINES) + "\n")
    data = {"root": directory, "train": "names.txt", "valid_share": 0.6, "documents": documents, "max_len": 6}
    recipe = {
        "task": "language-model",
        "data": data,
        "train": {"steps": 1},
        "model": {"d_model": 16, "n_heads": 2},
    }
    model = build(config, seed=1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    run = Run(
        model,
        tokenizer,
        GenerationConfig(batch_tokens=20),
        Recipe.model_validate(recipe) if documents else None,
    )
    run.save(directory / "run")
    return directory / "run"


def naive(run: Run, ids: list[int]) -> float:
    """log p of all tokens after the first, each by the whole text before it."""
    with torch.no_grad():
        return sum(
            float(run.model(torch.tensor([ids[:i]]))[0, -1].log_softmax(-1)[ids[i]])
            for i in range(1, len(ids))
        )


@pytest.mark.parametrize(("documents", "end"), [("line", True), ("file", False), (None, False)])
def test_a_text_is_scored_as_one_that_begins(tmp_path: Path, documents: str | None, end: bool) -> None:
    run = polyhead.load(made(tmp_path, documents))
    t = run.tokenizer
    begin = t.encode(["\n"])[0] if documents == "file" else [t.eos_id]
    for score, ids in zip(run.score(LINES, batch_tokens=9), t.encode(LINES), strict=True):
        whole = [*begin, *ids, *[t.eos_id] * end]
        assert score.tokens == len(whole) - 1
        assert score.log_prob == pytest.approx(naive(run, whole), abs=1e-4)
    scores = run.score(LINES)
    mean = sum(s.log_prob for s in scores) / sum(s.tokens for s in scores)
    assert run.perplexity(LINES) == pytest.approx(math.exp(-mean))
    with pytest.raises(UserError, match="perplexity is of a token, and there is none"):
        run.perplexity([])
    with pytest.raises(UserError, match=r"text 2 has \d+ tokens; this model's max_len is 24"):
        run.score(["anna", "zxq" * 30])


@pytest.mark.parametrize(
    ("documents", "always"), [("line", True), ("blank", True), ("file", False), (None, False)]
)
def test_a_prompt_is_the_beginning_of_a_document_or_its_middle(
    tmp_path: Path, documents: str | None, always: bool
) -> None:
    run = polyhead.load(made(tmp_path, documents))
    t = run.tokenizer
    (ids,) = t.encode(["anna"])
    begin = t.encode(["\n"])[0] if documents == "file" else [t.eos_id]
    assert run._prompt_template.build_prompt(ids) == ([*begin, *ids] if always else ids)
    assert run._prompt_template.build_prompt([]) == begin
    without = train_tokenizer(["ab"], Choice("char"), 20)  # knows no end of a line
    assert get_prompt_template(run.recipe, without).build_prompt([]) == [without.eos_id]


@pytest.mark.parametrize(
    ("files", "format", "always"),
    [
        ("talks.jsonl", "auto", True),
        ("a.csv.gz", "auto", True),
        ("a.txt", "tsv", True),
        ("a.txt", "auto", False),
    ],
)
def test_a_prompt_is_the_beginning_of_a_value_where_a_table_was_learned(
    tmp_path: Path, files: str, format: str, always: bool
) -> None:
    run = polyhead.load(made(tmp_path, "file"))
    assert run.recipe is not None
    data = run.recipe.data.model_copy(update={"train": [files], "format": format})
    about = get_prompt_template(run.recipe.model_copy(update={"data": data}), run.tokenizer)
    assert about.always_add_prefix == always
    assert (about.prefix_ids, about.suffix_ids) == ([run.tokenizer.eos_id],) * 2 or not always
    chat = {"data": data, "task": Choice("chat")}  # whose lines are conversations
    assert not get_prompt_template(run.recipe.model_copy(update=chat), run.tokenizer).always_add_prefix


@pytest.mark.parametrize("documents", ["line", "file"])
def test_perplexity_is_that_of_rows_side_by_side_each_document_alone(tmp_path: Path, documents: str) -> None:
    run = polyhead.load(made(tmp_path, documents))
    t, width = run.tokenizer, 6
    found = run.measure_perplexity(open_text([tmp_path / "names.txt"], documents))
    texts = [line for line in LINES if line] if documents == "line" else ["\n".join(LINES) + "\n"]
    ids: list[int] = []
    begins = []
    for encoded in t.encode(texts):
        begins.append(len(ids))
        ids += [*[t.eos_id] * (documents == "line"), *encoded]
    ids += [t.eos_id] * (documents == "line")
    total = 0.0
    for label in range(1, len(ids)):  # the token before it is the last that it may see
        first = max((label - 1) // width * width, max(b for b in begins if b < label))
        with torch.no_grad():
            log_p = run.model(torch.tensor([ids[first:label]]))[0, -1].log_softmax(-1)
        total -= float(log_p[ids[label]])
    whole = "\n".join(LINES) + "\n" if documents == "file" else "".join(text + "\n" for text in texts)
    words = len(whole.split()) + whole.count("\n")
    assert (found.tokens, found.words, found.characters) == (len(ids) - 1, words, len(whole))
    assert found.nll == pytest.approx(total, rel=1e-4)
    assert found.loss == pytest.approx(total / (len(ids) - 1), rel=1e-4)
    assert found.per_token == pytest.approx(math.exp(total / (len(ids) - 1)), rel=1e-3)
    assert found.per_word == pytest.approx(math.exp(total / words), rel=1e-3)
    assert found.bits_per_character == pytest.approx(total / math.log(2) / len(whole), rel=1e-4)


def answered(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    return code, *capsys.readouterr()


def test_the_verbs_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    directory = made(tmp_path, "line")
    run = polyhead.load(directory)
    code, out, err = answered(capsys, "score", directory, tmp_path / "names.txt", "--chunk", "3")
    wanted = run.score(LINES)
    assert code == 0
    assert [float(line.split("\t")[0]) for line in out.splitlines()] == pytest.approx(
        [s.log_prob for s in wanted], abs=1e-3
    )
    assert [int(line.split("\t")[1]) for line in out.splitlines()] == [s.tokens for s in wanted]
    assert float(err.split()[1]) == pytest.approx(run.perplexity(LINES), rel=1e-3)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"carl\n")))
    assert answered(capsys, "score", directory)[1] == out.splitlines()[1] + "\n"

    assert answered(capsys, "score", directory, LINES[1] + " " + LINES[1])[1].endswith(
        f"\t{run.score([LINES[1] + ' ' + LINES[1]])[0].tokens}\n"
    )

    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"carl\n\xff\nanna\n" + b"carl\n" * 8)
    assert (
        answered(capsys, "eval", directory, bad)[2]
        == "polyhead: bad.txt: skipped 1 lines that are no text or too long\n"
    )
    code, out, _ = answered(capsys, "eval", directory, tmp_path / "names.txt")
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    measured = run.measure_perplexity(open_text([tmp_path / "names.txt"], "line"))
    assert code == 0
    assert float(rows["perplexity"]) == pytest.approx(measured.per_token, rel=1e-3)
    assert float(rows["word-ppl"]) == pytest.approx(measured.per_word, rel=1e-3)
    assert float(rows["bits"]) == pytest.approx(measured.bits_per_character, rel=1e-3)
    code, out, _ = answered(capsys, "eval", directory, "--split", "valid")
    assert code == 0 and "nats of a token" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["eval", "RUN"],
            "this run's recipe names no test files; give them: polyhead eval RUN FILE, or take --split valid",
        ),
        (
            ["eval", "RUN", "--split", "valid", "--beam-size", "2", "--length-penalty", "1"],
            "--beam-size, --length-penalty: of translations; this run is a language model and is measured on plain text",
        ),
        (
            ["score", "RUN", "FILE", "FILE"],
            "this run is a language model: it scores the lines of one file, without translations",
        ),
        (
            ["translate", "RUN", "FILE"],
            "this takes an encoder-decoder, and the run is a language model: use generate, eval, score, embed or attend",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, capsys, arguments: list[str], message: str) -> None:
    directory = made(tmp_path, "file")
    named = {"RUN": str(directory), "FILE": str(tmp_path / "names.txt")}
    code, out, err = answered(capsys, *(named.get(a, a) for a in arguments))
    assert (code, out, err) == (2, "", f"polyhead: {message}\n")

"""A trained run and text for it: one's own, or a small language model of this package's own source, made here."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import polyhead.lab
from polyhead.data.columns import kind_of
from polyhead.data.corpus import open_corpus, read_pairs
from polyhead.data.files import check_file, is_text, lines
from polyhead.data.text import Text, TextReport, open_text
from polyhead.errors import UserError
from polyhead.lab.catalogue import Bench
from polyhead.lab.learn import Listener
from polyhead.loading import load
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.pipeline import run_training
from polyhead.train.tasks.plain_text import text_in

MOST = 4_000_000  # characters of a text that are looked at
SMALL: dict[str, Any] = {
    "task": "language-model",
    "tokenizer": {"kind": "bpe", "vocab_size": 1000},
    "model": {"kind": "decoder", "d_model": 128, "n_layers": 2, "n_heads": 4, "d_ff": 256, "max_len": 256, "position": "rope",
              "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu", "dropout": 0.0, "init": "normal",
              "scale_embedding": False},
    "train": {"max_tokens": 2048, "lr": 5e-3, "log_every": 50, "keep": 1},
}  # fmt: skip


class Subject(NamedTuple):
    """What is measured: a run, and texts for it. A language model's are documents, a translator's are sources."""

    run: Run
    said: str
    texts: list[str]
    references: list[str]  # of a translator, one a source, or none
    marked: bool = False  # whether a mark stands before each document

    @property
    def translates(self) -> bool:
        return self.run.config.kind == "encoder-decoder"

    def lines(self) -> list[str]:
        """The texts line by line, without blank ones."""
        return [line for text in self.texts for line in text.splitlines() if line.strip()]


def subject(bench: Bench) -> Subject:
    """The run and the text that were given, or the small ones."""
    if bench.run is None:
        bench.say(
            "no --run: a small language model learns this package's own source, as every run is trained"
        )
        return small(bench.seed, bench.quick)
    run = load(bench.run)
    name = bench.run.name
    if run.config.kind == "decoder":
        return read_text(run, f"the language model {name}", text_in(bench.text, run.recipe))
    if run.config.kind != "encoder-decoder":
        raise UserError(
            f"--run {bench.run}: this takes a language model or a translator, and the run has no decoder"
        )
    sources, references = read_sources(run, bench.text)
    return Subject(
        run, f"the translator {name} on {' and '.join(path.name for path in bench.text)}", sources, references
    )


def read_text(run: Run, said: str, text: Text) -> Subject:
    """The documents of a text, as many as the first characters of it hold."""
    documents, size, fresh = [""], 0, True
    for piece in text.pieces(TextReport(text.where)):
        documents = [*documents, piece.text] if fresh else [*documents[:-1], documents[-1] + piece.text]
        fresh, size = piece.last, size + len(piece.text)
        if size > MOST:
            break
    return Subject(run, f"{said} on {text.where}", documents[1:], [], text.marked)


def read_sources(run: Run, files: tuple[Path, ...]) -> tuple[list[str], list[str]]:
    """Sources, and references if there are two files or a table of pairs."""
    if len(files) == 1 and kind_of(files) is None:
        found = [line.decode() for line in lines(check_file(files[0])) if line is not None and is_text(line)]
        return [line for line in found if line.strip()], []
    data = run.recipe.data if run.recipe else None
    corpus = open_corpus(files, source=data.source, target=data.target) if data else open_corpus(files)
    sources, references, _ = read_pairs(corpus)
    return sources, references


@cache
def small(seed: int, quick: bool) -> Subject:
    """A language model of the sources of this package; a tenth of the files is held out."""
    root = Path(polyhead.lab.__file__).parents[1]
    files = sorted(root.rglob("*.py"))
    with tempfile.TemporaryDirectory() as place:
        for name, some in (("train", [f for i, f in enumerate(files) if i % 10]), ("test", files[::10])):
            text = "\n\n".join(f.read_text(encoding="utf-8") for f in some)
            (Path(place) / f"{name}.txt").write_text(text[:30_000] if quick else text, encoding="utf-8")
        steps, warmup = (4, 1) if quick else (400, 40)
        changed = {"steps": steps, "eval_every": steps, "save_every": steps, "seed": seed, "threads": torch.get_num_threads(),
                   "schedule": {"name": "cosine", "warmup": warmup}}  # fmt: skip
        recipe = Recipe.model_validate(
            {**SMALL, "train": {**SMALL["train"], **changed}, "out": Path(place) / "run",
             "data": {"root": place, "train": ["train.txt"], "valid": ["test.txt"], "max_len": 256}}
        )  # fmt: skip
        run, _ = run_training(recipe, report=Listener())
        return read_text(
            run,
            "a small language model of this package's source",
            open_text([Path(place) / "test.txt"], "file"),
        )

"""Inputs and models of experiments that use a trained run: texts as rows of a decoder, and small models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import polyhead
import polyhead_lab
from polyhead import load
from polyhead.config.recipe import Recipe
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import collate_pairs
from polyhead.data.readers.files import check_file, is_text, iter_lines
from polyhead.data.readers.parallel_corpus import open_corpus, read_pairs
from polyhead.data.readers.plain_text import TextFiles, TextReport, open_text
from polyhead.data.readers.tabular import infer_format
from polyhead.nn.kv import arange_positions
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages
from polyhead.train.run_training import run_training
from polyhead.train.tasks.common import open_text_like
from polyhead_lab.registry import LabContext
from polyhead_lab.short_training import LossRecorder


class EvalRows(NamedTuple):
    """Decoder inputs of N texts with T tokens each; for a translator with sources of S tokens."""

    input_ids: Tensor  # (N, T)
    pos: Tensor  # (N, T), -1 at padding
    labels: Tensor  # (N, T) the next token, IGNORE_INDEX at padding
    source: Tensor | None = None  # (N, S)
    source_pos: Tensor | None = None  # (N, S)

    def select(self, index: slice) -> EvalRows:
        """A slice of the texts."""
        return EvalRows(
            self.input_ids[index],
            self.pos[index],
            self.labels[index],
            *(x if x is None else x[index] for x in self[3:]),
        )

    def batches(self, n: int) -> Iterator[EvalRows]:
        """Batches of ``n`` texts."""
        for i in range(0, len(self.input_ids), n):
            yield self.select(slice(i, i + n))


def make_eval_rows(subject: ModelUnderTest, n: int, width: int) -> EvalRows:
    """Decoder inputs of the first ``n`` texts: for a language model adjacent windows of ``width`` tokens.

    For a translator they are the references, or else its own greedy translations; pairs with a side of more
    than ``width`` tokens are left out.
    """
    return make_pair_rows(subject, n, width) if subject.is_translator else make_window_rows(subject, n, width)


def make_window_rows(subject: ModelUnderTest, n: int, width: int) -> EvalRows:
    """``make_eval_rows`` for a language model: at least two and at most ``n`` windows."""
    tokenizer, template = subject.run.tokenizer, subject.run.prompt_template
    prefix_ids = template.prefix_ids if template.always_add_prefix else []
    separator = [tokenizer.eos_id] if subject.has_documents else []
    window_len, ids = width + 1 - len(prefix_ids), list[int]()
    for document in subject.texts:
        ids += [*separator, *tokenizer.encode([document])[0]]
        if len(ids) >= n * window_len:
            break
    if len(ids) < 2 * window_len:
        raise UserError(f"the text has {len(ids):,} tokens; expected at least two windows of {window_len}")
    windows = torch.tensor(
        [[*prefix_ids, *ids[i : i + window_len]] for i in range(0, len(ids) - window_len + 1, window_len)][:n]
    )
    return EvalRows(
        windows[:, :-1], arange_positions(width, windows.device).expand(len(windows), -1), windows[:, 1:]
    )


def make_pair_rows(subject: ModelUnderTest, n: int, width: int) -> EvalRows:
    """``make_eval_rows`` for a translator."""
    tokenizer, sources = subject.run.tokenizer, subject.texts[:n]
    targets = subject.references[:n] or subject.run.translate(sources, beam_size=1, truncate=True)
    max_tokens = width - with_languages(tokenizer).max_special
    sides = zip(tokenizer.encode(sources), tokenizer.target_tokenizer.encode(targets), strict=True)
    pairs = [(a, b) for a, b in sides if max(len(a), len(b)) <= max_tokens]
    if len(pairs) < 2:
        raise UserError(
            f"the text has {len(pairs)} pairs of at most {max_tokens} tokens per side; expected at least 2"
        )
    batch = collate_pairs([a for a, _ in pairs], [b for _, b in pairs], tokenizer)
    lengths = (batch.labels != IGNORE_INDEX).sum(1, keepdim=True)
    pos = arange_positions(batch.labels.size(1), lengths.device)
    return EvalRows(
        batch.target, torch.where(pos < lengths, pos, -1), batch.labels, batch.source, batch.source_pos
    )


_MAX_CHARS = 4_000_000  # maximum characters of a text that are used
_SMALL_RECIPE: dict[str, Any] = {
    "task": "language-model",
    "tokenizer": {"kind": "bpe", "vocab_size": 1000},
    "model": {"kind": "decoder", "d_model": 128, "n_layers": 2, "n_heads": 4, "d_ff": 256, "max_len": 256,
        "position": "rope",
              "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu", "dropout": 0.0,
              "init": "normal",
              "scale_embedding": False},
    "train": {"max_tokens": 2048, "lr": 5e-3, "log_every": 50, "keep": 1},
}  # fmt: skip


class ModelUnderTest(NamedTuple):
    """A run and texts to measure it on: documents for a language model, sources for a translator."""

    run: Run
    description: str
    texts: list[str]
    references: list[str]  # of a translator: one per source, or none
    has_documents: bool = False  # whether a separator token precedes each document

    @property
    def is_translator(self) -> bool:
        return self.run.config.kind == "encoder-decoder"

    def split_lines(self) -> list[str]:
        """Lines of the texts, without blank ones."""
        return [line for text in self.texts for line in text.splitlines() if not is_blank(line)]


def load_subject(lab: LabContext) -> ModelUnderTest:
    """Run and text of the options, or the small ones of the lab."""
    if lab.run is None:
        lab.info("no --run: training a small language model on the source code of this package")
        return train_small_model(lab.seed, lab.quick)
    run = load(lab.run)
    name = lab.run.name
    if run.config.kind == "decoder":
        return read_text(run, f"the language model {name}", open_text_like(lab.text, run.recipe))
    if run.config.kind != "encoder-decoder":
        raise UserError(
            f"--run {lab.run}: expected a language model or a translation model, but the run has no decoder"
        )
    sources, references = read_sources(run, lab.text)
    return ModelUnderTest(
        run,
        f"the translation model {name} on {' and '.join(path.name for path in lab.text)}",
        sources,
        references,
    )


def read_text(run: Run, description: str, text: TextFiles) -> ModelUnderTest:
    """Read the documents of a text, up to ``_MAX_CHARS`` characters."""
    documents, size, is_new_document = [""], 0, True
    for piece in text.read_chunks(TextReport(text.source_label)):
        documents = (
            [*documents, piece.text] if is_new_document else [*documents[:-1], documents[-1] + piece.text]
        )
        is_new_document, size = piece.is_last, size + len(piece.text)
        if size > _MAX_CHARS:
            break
    return ModelUnderTest(run, f"{description} on {text.source_label}", documents[1:], [], text.has_documents)


def read_sources(run: Run, files: tuple[Path, ...]) -> tuple[list[str], list[str]]:
    """Read sources, and references if there are two files or a table of pairs."""
    if len(files) == 1 and infer_format(files) is None:
        lines = [
            line.decode() for line in iter_lines(check_file(files[0])) if line is not None and is_text(line)
        ]
        return [line for line in lines if not is_blank(line)], []
    data = run.recipe.data if run.recipe else None
    corpus = open_corpus(files, source=data.source, target=data.target) if data else open_corpus(files)
    sources, references, _ = read_pairs(corpus)
    return sources, references


def list_source_files() -> list[Path]:
    """The modules of Polyhead and of the lab: text that is always at hand."""
    packages = (Path(package.__path__[0]) for package in (polyhead, polyhead_lab))
    return [file for package in packages for file in sorted(package.rglob("*.py"))]


@cache
def train_small_model(seed: int, quick: bool) -> ModelUnderTest:
    """Train a language model on the sources of this package; a tenth of the files is held out."""
    files = list_source_files()
    with tempfile.TemporaryDirectory() as directory:
        for name, split_files in (
            ("train", [f for i, f in enumerate(files) if i % 10]),
            ("test", files[::10]),
        ):
            text = "\n\n".join(f.read_text(encoding="utf-8") for f in split_files)
            (Path(directory) / f"{name}.txt").write_text(text[:30_000] if quick else text, encoding="utf-8")
        steps, warmup = (4, 1) if quick else (400, 40)
        train_changes = {"steps": steps, "eval_every": steps, "save_every": steps, "seed": seed,
            "threads": torch.get_num_threads(),
                   "schedule": {"name": "cosine", "warmup": warmup}}  # fmt: skip
        recipe = Recipe.model_validate(
            {**_SMALL_RECIPE, "train": {**_SMALL_RECIPE["train"], **train_changes},
                "out": Path(directory) / "run",
             "data": {"root": directory, "train": ["train.txt"], "valid": ["test.txt"], "max_len": 256}}
        )  # fmt: skip
        run, _ = run_training(recipe, report=LossRecorder())
        return read_text(
            run,
            "a small language model of the source code of this package",
            open_text([Path(directory) / "test.txt"], "file"),
        )

"""Which text a run learns from, and how it becomes tokens. No torch here."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from polyhead import hub
from polyhead.errors import UserError, at, nearest, show
from polyhead.registry import TOKENIZER, Choice
from polyhead.sections import Files, Section

Column = Annotated[str | int, BeforeValidator(lambda given: _column(given))]
Columns = Annotated[
    list[Column], BeforeValidator(lambda given: given if isinstance(given, list | tuple) else [given])
]


class DataConfig(Section):
    """Which text to learn from. Pairs are in parallel files ``[source, target]``, TSV or JSONL; labelled texts in TSV or
    JSONL; plain text in any number of files, or a column of a table; CSV and Parquet are read as JSONL. A name for a column of a TSV means that its first
    line is a header.
    """

    root: Path = Field(Path("."), description="directory of the files; relative to where you stand")
    train: Files = Field(
        min_length=1,
        description="files to learn from, patterns of their names, or hf://datasets/OWNER/NAME/PATH; .gz is read as it is",
    )
    valid: Files | None = Field(None, description="files to measure progress on")
    valid_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="without valid: a share of the training text, its end; of labelled texts and of pairs, some from all over",
    )
    test: Files | None = Field(None, description="files to measure the finished model on")
    format: Literal["auto", "parallel", "tsv", "jsonl"] = Field("auto", description="auto: by the file names")
    source_lang: str = Field("", description="language code of the source, e.g. de")
    target_lang: str = Field("", description="language code of the target, e.g. en")
    source: Column = Field(0, description="column of a TSV (0 is the first) or key of a JSONL")
    target: Column = Field(1, description="column of a TSV or key of a JSONL")
    text: Columns = Field(
        ["text"],
        min_length=1,
        max_length=2,
        description="column or key of labelled texts, or of documents; two for pairs: [premise, hypothesis]",
    )
    label: Column = Field("label", description="column or key of the label of a text")
    documents: Literal["file", "line", "blank"] = Field(
        "file", description="plain text: what a document is; blank: blank lines end one"
    )
    max_len: int = Field(
        256,
        gt=0,
        description="tokens a side; longer pairs are skipped and counted; tokens of a row of plain text",
    )
    cache: Path | None = Field(None, description="directory that keeps the tokenized text between runs")

    @field_validator("format", mode="before")
    @classmethod
    def _no_table(cls, given: Any) -> Any:
        if str(given).lower() in ("csv", "parquet"):
            raise UserError(f"{show(given)}: a file x.{given} is read by its name; leave data.format out")
        return given

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that a run reads: train, valid and, if there is one, test."""
        return ("train", "valid", *(["test"] if self.test else []))

    def paths(self, split: str) -> list[Path]:
        """The files of a split; a UserError names the one that is missing and the nearest that is there."""
        if not self.root.is_dir():
            raise UserError(f"data.root: no directory {str(self.root)!r}; give the right one: data.root=...")
        names: list[str] = getattr(self, split) or []
        with at(f"data.{split}"):
            return [path for name in names for path in self.files(name)]

    def part(self, split: str) -> tuple[list[Path], float, bool]:
        """The files of a split, the share of them that is held out, and whether the split is that share or the rest."""
        share = self.valid_share if split != "test" and not self.valid else 0.0
        return self.paths("train" if share else split), share, split == "valid"

    def files(self, name: str) -> list[Path]:
        """The files of one name; a UserError where there are none."""
        if name.startswith(hub.PREFIX):
            return hub.files_of(name)
        if found := self.local(name):
            return found
        there = [f.name for f in (self.root / name).parent.glob("*") if f.is_file()]
        folder, slash, last = name.rstrip("/").rpartition("/")
        hint = nearest(last, there, before=folder + slash) or "; set its directory with data.root=..."
        raise UserError(f"no file {name!r} in {str(self.root)!r}{hint}")

    def local(self, name: str) -> list[Path]:
        """The file of that name, or in order those of a pattern; none where there is none."""
        path = self.root / name
        if path.exists():
            return [path]
        found = sorted(glob.glob(name, root_dir=self.root, recursive=True))
        return [self.root / one for one in found if (self.root / one).is_file()]


class TokenizerConfig(Section):
    """How text becomes tokens; trained on both sides of the training text."""

    kind: Choice = Choice("bpe")
    vocab_size: int = Field(8000, gt=5, description="tokens, special ones included; small corpora give fewer")
    sentinels: int = Field(
        0, ge=0, description="tokens that stand for hidden spans; denoising with noise=spans needs them"
    )

    @field_validator("kind")
    @classmethod
    def _known(cls, choice: Choice) -> Choice:
        return TOKENIZER.check(choice)


def _column(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise UserError(f"{show(given)} is not a column's number or a key's name")
    return given

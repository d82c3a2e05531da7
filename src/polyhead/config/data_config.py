"""Which text a run trains on, and its tokenizer. No torch here."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from polyhead.config.config_sections import ConfigSection, Files
from polyhead.core import hub
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean, format_value, prefix_errors
from polyhead.core.registry import TOKENIZER

ColumnRef = Annotated[str | int, BeforeValidator(lambda value: _check_column(value))]
ColumnRefs = Annotated[
    list[ColumnRef], BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])
]


class DataConfig(ConfigSection):
    """Which text to train on.

    Pairs are in parallel files ``[source, target]``, TSV or JSONL; labelled texts in TSV or JSONL; plain text
    in any number of files, or a column of a table; CSV and Parquet are read as JSONL. A name for a column of
    a TSV means that its first line is a header.
    """

    root: Path = Field(Path("."), description="directory of the files, relative to the working directory")
    train: Files = Field(
        min_length=1,
        description="training files: names, glob patterns, folders of .txt, or "
        "hf://datasets/OWNER/NAME/PATH; .gz is read directly",
    )
    valid: Files | None = Field(None, description="validation files")
    valid_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="without valid: fraction of the training data held out for validation: the end of "
        "plain text; for pairs, labelled texts and conversations, all lines of a text are in one split",
    )
    test: Files | None = Field(None, description="test files, for the finished model")
    format: Literal["auto", "parallel", "tsv", "jsonl"] = Field(
        "auto", description="format of the files; auto: by file name"
    )
    source_lang: str = Field("", description="language code of the source, e.g. de")
    target_lang: str = Field("", description="language code of the target, e.g. en")
    source: ColumnRef = Field(0, description="column of a TSV (0 is the first) or key of a JSONL")
    target: ColumnRef = Field(1, description="column of a TSV or key of a JSONL")
    text: ColumnRefs = Field(
        ["text"],
        min_length=1,
        max_length=2,
        description="column or key of the text, in labelled texts or documents; two for pairs: "
        "[premise, hypothesis]",
    )
    label: ColumnRef = Field("label", description="column or key of the label")
    document_separator: Literal["file", "line", "blank"] = Field(
        "file", description="plain text: what is one document: a file, a line, or the lines up to a blank one"
    )
    max_len: int = Field(
        256,
        gt=0,
        description="maximum number of tokens per side, longer pairs are skipped and counted; for plain "
        "text, number of tokens per row",
    )
    cache_dir: Path | None = Field(None, description="directory for caching the tokenized text between runs")

    @field_validator("format", mode="before")
    @classmethod
    def _reject_table_format(cls, value: Any) -> Any:
        if str(value).lower() in ("csv", "parquet"):
            raise UserError(
                f"{format_value(value)}: the format of a file x.{value} follows from its name; "
                "remove data.format"
            )
        return value

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that a run reads: train, valid and, if configured, test."""
        return ("train", "valid", *(["test"] if self.test else []))

    def split_paths(self, split: str) -> list[Path]:
        """The files of a split; a UserError for a missing one suggests the nearest existing name."""
        if not self.root.is_dir():
            raise UserError(f"data.root: no directory {str(self.root)!r}; set it with data.root=...")
        names: list[str] = getattr(self, split) or []
        with prefix_errors(f"data.{split}"):
            return [path for name in names for path in self.resolve_files(name)]

    def select_split(self, split: str) -> tuple[list[Path], float, bool]:
        """Files of a split, the fraction of them held out, and whether the split is that held-out part."""
        share = self.valid_fraction if split != "test" and not self.valid else 0.0
        return self.split_paths("train" if share else split), share, split == "valid"

    def resolve_files(self, name: str) -> list[Path]:
        """The files that a name or pattern matches; a UserError if there are none."""
        if name.startswith(hub.HUB_PREFIX):
            return hub.download_dataset_files(name)
        if files := self.find_local_files(name):
            return files
        names = [f.name for f in (self.root / name).parent.glob("*") if f.is_file()]
        folder, slash, last = name.rstrip("/").rpartition("/")
        hint = did_you_mean(last, names, prefix=folder + slash) or "; set its directory with data.root=..."
        raise UserError(f"no file {name!r} in {str(self.root)!r}{hint}")

    def find_local_files(self, name: str) -> list[Path]:
        """The file of that name, or the sorted files that match it as a pattern; empty if there are none.

        Of a folder, its text files.
        """
        path = self.root / name
        if texts := sorted(filter(Path.is_file, (*path.glob("*.txt"), *path.glob("*.txt.gz")))):
            return texts
        if path.exists():
            return [path]
        matches = sorted(glob.glob(name, root_dir=self.root, recursive=True))
        return [self.root / match for match in matches if (self.root / match).is_file()]


class TokenizerConfig(ConfigSection):
    """How text becomes tokens; trained on both sides of the training text."""

    kind: Choice = Choice("bpe")
    vocab_size: int = Field(
        8000, gt=5, description="number of tokens, including special tokens; small corpora give fewer"
    )
    sentinels: int = Field(
        0,
        ge=0,
        description="number of sentinel tokens, which replace masked spans; required for denoising with "
        "noise=spans",
    )

    @field_validator("kind")
    @classmethod
    def _check_part(cls, choice: Choice) -> Choice:
        return TOKENIZER.check(choice)


def _check_column(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{format_value(value)} is neither a column number nor the name of a key")
    return value

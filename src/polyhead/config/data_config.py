"""The section ``data`` of a recipe: the files of each split, their columns and corpora."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from polyhead.config.config_sections import ConfigSection
from polyhead.config.corpora import (
    CorpusConfig,
    TextSources,
    as_corpora,
    complete_corpora,
    list_files,
    match_corpora,
)
from polyhead.core import hub
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, prefix_errors
from polyhead.core.output_paths import did_you_mean_path, list_folder_texts
from polyhead.core.registry import AUGMENT


def _check_column(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{format_value(value)} is neither a column number nor the name of a key")
    return value


ColumnRef = Annotated[str | int, BeforeValidator(_check_column)]
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
    train: TextSources = Field(
        description="training files: names, glob patterns, folders of .txt, or "
        "hf://datasets/OWNER/NAME/PATH; .gz is read directly. Or a list of corpora, each with its files",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="of several corpora: an epoch has texts in proportion to weight * size^(1/temperature); "
        "1: by size, higher: more of the small ones",
    )
    valid: TextSources | None = Field(
        None, description="validation files, or a list of corpora with names of data.train"
    )
    valid_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="without valid: fraction of the training data held out for validation: the end of "
        "plain text; for pairs, labelled texts and conversations, all lines of a text are in one split",
    )
    test: TextSources | None = Field(
        None, description="test files, or corpora as in data.valid, for the finished model"
    )
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
    augment: list[Choice] = Field(
        [],
        description="changes of training pairs, different in each epoch: caps, title, no_stop, typos, noise, "
        "emoji, urls, numbers, tags; validation and test text stay",
    )
    alignments: Path | None = Field(
        None,
        description="translation: a file with the links of the words of each training pair, a line such as "
        "0-0 1-2 for a pair, which a head of the cross-attention learns (guided alignment)",
    )
    cache_dir: Path | None = Field(None, description="directory for caching the tokenized text between runs")

    @field_validator("train")
    @classmethod
    def _check_train(cls, value: Any) -> Any:
        if not value:
            raise UserError("[] is empty; give at least 1")
        return value

    @field_validator("format", mode="before")
    @classmethod
    def _reject_table_format(cls, value: Any) -> Any:
        if str(value).lower() in ("csv", "parquet"):
            raise UserError(
                f"{format_value(value)}: the format of a file x.{value} follows from its name; "
                "remove data.format"
            )
        return value

    @field_validator("augment")
    @classmethod
    def _check_parts(cls, choices: list[Choice]) -> list[Choice]:
        return [AUGMENT.check(choice) for choice in choices]

    def check_corpora(self) -> None:
        """Raise a UserError if the corpora of the splits do not fit together."""
        training_corpora = self.list_corpora("train")
        if not training_corpora and self.temperature != 1:
            raise UserError("data.temperature is for several corpora: data.train names the files of one")
        for split in ("valid", "test"):
            if as_corpora(getattr(self, split)) and not training_corpora:
                raise UserError(f"data.{split} has corpora, and data.train names the files of one")
            if getattr(self, split) and self.language_tags and not self.list_corpora(split):
                raise UserError(
                    f"data.{split}: the corpora have several target languages; expected a list of corpora "
                    f"with names of data.train, such as {{name: {training_corpora[0].name}, files: [...]}}"
                )
            self.list_corpora(split)

    def list_files(self, split: str) -> list[str]:
        """The names of the files of a split, as the recipe has them."""
        return list_files(getattr(self, split))

    def list_corpora(self, split: str) -> list[CorpusConfig]:
        """The corpora of a split, with names, languages and tags; empty if it has one without settings."""
        training_corpora = complete_corpora(as_corpora(self.train), self.source_lang, self.target_lang)
        if split == "train" or (split == "valid" and self.valid_fraction and not self.valid):
            return training_corpora
        return match_corpora(split, as_corpora(getattr(self, split)), training_corpora)

    def list_targets(self, split: str) -> list[str]:
        """The target language of each corpus of a split."""
        return [corpus.target_lang for corpus in self.list_corpora(split)] or [self.target_lang]

    def common_target(self, split: str) -> str:
        """The target language of a split; "" if its corpora have several."""
        first, *others = dict.fromkeys(self.list_targets(split))
        return "" if others else first

    @property
    def language_tags(self) -> dict[str, str]:
        """The tag of each target language, as in OPUS-MT, if the corpora have several: {"de": ">>de<<"}."""
        languages = dict.fromkeys(corpus.target_lang for corpus in self.list_corpora("train"))
        return {lang: f">>{lang}<<" for lang in languages} if len(languages) > 1 else {}

    @property
    def tags(self) -> list[str]:
        """The special tokens that the corpora need: those of target languages, then those of corpora."""
        of_corpora = dict.fromkeys(corpus.tag for corpus in self.list_corpora("train") if corpus.tag)
        return [*self.language_tags.values(), *of_corpora]

    def source_tags(self, corpus: CorpusConfig) -> list[str]:
        """The special tokens at the start of each source of a corpus."""
        return list(filter(None, [self.language_tags.get(corpus.target_lang), corpus.tag]))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that a run reads: train, valid and, if configured, test."""
        return ("train", "valid", *(["test"] if self.test else []))

    def split_paths(self, split: str, corpus: CorpusConfig | None = None) -> list[Path]:
        """The files of a split; a UserError for a missing one suggests the nearest existing name."""
        if not self.root.is_dir():
            if self.root.exists():
                raise UserError(f"data.root: {self.root} is a file; expected a directory")
            hint = did_you_mean_path(self.root, "*/") or "; set it with data.root=..."
            raise UserError(f"data.root: no directory {str(self.root)!r}{hint}")
        names = self.list_files(split) if corpus is None else corpus.files
        with prefix_errors(f"data.{split}"):
            return [path for name in names for path in self.resolve_files(name)]

    def select_split(self, split: str, corpus: CorpusConfig | None = None) -> tuple[list[Path], float, bool]:
        """Files of a split, the fraction of them held out, and whether the split is that held-out part.

        With a ``corpus``, its files only.
        """
        share = self.valid_fraction if split != "test" and not self.valid else 0.0
        return self.split_paths("train" if share else split, corpus), share, split == "valid"

    def resolve_files(self, name: str) -> list[Path]:
        """The files that a name or pattern matches; a UserError if there are none."""
        if name.startswith(hub.HUB_PREFIX):
            return hub.download_dataset_files(name)
        if files := self.find_local_files(name):
            return files
        hint = did_you_mean_path(self.root / name, root=self.root) or "; set its directory with data.root=..."
        raise UserError(f"no file {name!r} in {str(self.root)!r}{hint}")

    def find_local_files(self, name: str) -> list[Path]:
        """The file of that name, or the sorted files that match it as a pattern; empty if there are none.

        Of a folder, its text files.
        """
        path = self.root / name
        if texts := list_folder_texts(path):
            return texts
        if path.exists():
            return [path]
        matches = sorted(glob.glob(name, root_dir=self.root, recursive=True))
        return [self.root / match for match in matches if (self.root / match).is_file()]

"""Several corpora of one training: their files, weights, tags and filters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, field_validator

from polyhead.config.config_sections import ConfigSection, Files
from polyhead.core.errors import UserError, did_you_mean, format_value

MIXING_TASKS = ("translation", "language-model", "masked-lm", "replaced-token-detection", "denoising")


class CorpusFilter(ConfigSection):
    """Which texts of a corpus are used: those that pass every rule. A pair passes if both sides do."""

    min_chars: int | None = Field(None, gt=0, description="minimum number of characters of a text")
    max_chars: int | None = Field(None, gt=0, description="maximum number of characters of a text")
    max_ratio: float | None = Field(
        None, gt=1, description="of a pair: maximum length of the longer side / the shorter, in characters"
    )
    unique: bool = Field(False, description="drop repeated texts")
    language: bool = Field(
        False,
        description="drop texts in another script than that of source_lang or target_lang, or with the "
        "frequent words of the other language, and pairs of equal sides",
    )


class CorpusConfig(ConfigSection):
    """One of several training corpora: its files, and how they are mixed with the others."""

    name: str = Field(
        "",
        pattern=r"^[\w.+-]*$",
        description="name in logs and reports, of letters, digits and _.+-; default: that of the first file, "
        "without suffix",
    )
    files: Files = Field(min_length=1, description="files, as data.train names those of a single corpus")
    weight: float = Field(
        1.0,
        gt=0,
        description="how often a text is used relative to one of a corpus with weight 1, at temperature 1",
    )
    source_lang: str = Field("", description="language code of the source; default: data.source_lang")
    target_lang: str = Field(
        "",
        description="language code of the target; default: data.target_lang. With several of them, each "
        "source starts with a token for its target, such as >>de<<",
    )
    tag: str = Field("", description="token at the start of each source, such as <BT> for back-translations")
    max_texts: int | None = Field(
        None, gt=0, description="maximum number of training texts: the first ones that pass the filter"
    )
    filter: CorpusFilter = Field(default_factory=CorpusFilter, description="which texts are used")

    @field_validator("tag")
    @classmethod
    def _check_tag(cls, tag: str) -> str:
        if tag and not (tag.startswith("<") and tag.endswith(">") and not any(map(str.isspace, tag))):
            raise UserError(f"{format_value(tag)}: expected a token in angle brackets, such as <BT>")
        return tag

    @property
    def label(self) -> str:
        """The name, by default that of the first file without its suffixes."""
        return self.name or Path(self.files[0]).name.removesuffix(".gz").rpartition(".")[0] or self.files[0]


def _classify_sources(value: Any) -> str:
    entries = value if isinstance(value, list | tuple) else []
    return "[corpora]" if any(isinstance(entry, dict | CorpusConfig) for entry in entries) else "[files]"


# a tag in brackets is no part of the key in error messages
TextSources = Annotated[
    Annotated[Files, Tag("[files]")] | Annotated[list[CorpusConfig], Tag("[corpora]")],
    Discriminator(_classify_sources),
]
"""The files of one corpus, or several corpora."""


def as_corpora(sources: Sequence[str] | Sequence[CorpusConfig] | None) -> list[CorpusConfig]:
    """The corpora of a key; empty if it names files."""
    return [source for source in sources or () if isinstance(source, CorpusConfig)]


def list_files(sources: Sequence[str] | Sequence[CorpusConfig] | None) -> list[str]:
    """All file names of a key."""
    names = ([source] if isinstance(source, str) else source.files for source in sources or ())
    return [name for files in names for name in files]


def complete_corpora(
    corpora: Sequence[CorpusConfig], source_lang: str, target_lang: str
) -> list[CorpusConfig]:
    """Training corpora with their names and languages; equal names and a missing target are UserErrors."""
    complete = [
        corpus.model_copy(
            update={
                "name": corpus.label,
                "source_lang": corpus.source_lang or source_lang,
                "target_lang": corpus.target_lang or target_lang,
            }
        )
        for corpus in corpora
    ]
    names = _check_names("train", complete)
    languages = [corpus.target_lang for corpus in complete]
    if any(languages) and not all(languages):
        missing, other = names[languages.index("")], next(filter(None, languages))
        raise UserError(
            f"data.train: corpus {missing!r} has no target_lang, and others have ({other}): set it, or "
            "data.target_lang for all of them"
        )
    return complete


def _check_names(split: str, corpora: Sequence[CorpusConfig]) -> list[str]:
    names = [corpus.label for corpus in corpora]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"data.{split}: two corpora have the name {repeated[0]!r}; set another name for one")
    return names


def match_corpora(
    split: str, corpora: Sequence[CorpusConfig], training_corpora: Sequence[CorpusConfig]
) -> list[CorpusConfig]:
    """Corpora of validation or test, with the tags and languages of those of the same names in training."""
    by_name = {corpus.name: corpus for corpus in training_corpora}
    matched = []
    for corpus, name in zip(corpora, _check_names(split, corpora), strict=True):
        where = f"data.{split}: corpus {name!r}"
        if name not in by_name:
            hint = did_you_mean(name, by_name) or f"; known: {', '.join(by_name)}"
            raise UserError(f"{where} is not one of data.train{hint}")
        if changed := corpus.model_dump(exclude={"name", "files", "filter"}, exclude_defaults=True):
            raise UserError(f"{where}: {min(changed)} is set in data.train only: remove it")
        update = {"files": corpus.files, "filter": corpus.filter, "max_texts": None}
        matched.append(by_name[name].model_copy(update=update))
    return matched

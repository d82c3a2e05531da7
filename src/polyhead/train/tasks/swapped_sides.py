"""Detect swapped sides of a parallel corpus, and language codes that do not match the text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from polyhead.config.data_config import DataConfig
from polyhead.core.errors import UserError, prefix_errors
from polyhead.data.readers.detect_language import (
    Language,
    describe_language,
    detect_wrong_language,
)
from polyhead.data.readers.parallel_corpus import ParallelFiles
from polyhead.tokenizers.languages import is_same_language, script_of_language

_MAX_PAIRS = 1000  # that are read


class SidePair(NamedTuple):
    """A value for the source and one for the target."""

    source: str
    target: str


def check_corpora_sides(data: DataConfig, corpora: Mapping[str, ParallelFiles]) -> list[str]:
    """``check_sides`` of each of several corpora, or of a single one."""
    training_corpora = data.list_corpora("train")
    if not training_corpora:
        return check_sides(data, corpora)
    warnings = []
    for corpus in training_corpora:
        update = {"source_lang": corpus.source_lang, "target_lang": corpus.target_lang}
        parts = {
            split: part
            for split, files in corpora.items()
            for part in files.parts
            if part.name == corpus.name
        }
        with prefix_errors(f"corpus {corpus.name!r}"):
            found = check_sides(data.model_copy(update=update), parts)
        warnings += [f"corpus {corpus.name!r}: {warning}" for warning in found]
    return warnings


def check_sides(data: DataConfig, corpora: Mapping[str, ParallelFiles]) -> list[str]:
    """Raise a UserError if the sides of a split, or their language codes, are swapped.

    Returns warnings of possible errors. ``corpora`` maps splits to corpora, and must have "train".
    """
    for split, corpus in corpora.items():
        if corpus.format == "parallel" and (name := corpus.copied_side):
            raise UserError(
                f"data.{split}: {name} is both source and target; expected the file of each language"
            )
    texts = _sample_pairs(corpora["train"])
    languages = describe_language(texts[0]), describe_language(texts[1])
    warnings = _check_codes(data, corpora["train"], languages, texts)
    for split in ("valid", "test"):
        if split in corpora and getattr(data, split):
            warnings += _check_split(data, split, corpora, languages)
    return warnings


def _check_split(
    data: DataConfig, split: str, corpora: Mapping[str, ParallelFiles], languages: tuple[Language, Language]
) -> list[str]:
    texts = _sample_pairs(corpora[split])
    reasons = SidePair(
        detect_wrong_language(texts[0], *languages), detect_wrong_language(texts[1], *reversed(languages))
    )
    side_names, train_names = _side_names(corpora[split]), _side_names(corpora["train"])
    if reasons.source and reasons.target:
        names = getattr(data, split)
        hint = f"; write data.{split}=[{','.join(reversed(names))}]" if len(names) == 2 else ""
        raise UserError(
            f"data.{split}: the sides are swapped: {side_names.source} is the source and has the language "
            f"of the training target {train_names.target} ({reasons.source}), {side_names.target} that of "
            f"the training source {train_names.source} ({reasons.target}){hint}"
        )
    sides = (("source", "target", reasons.source), ("target", "source", reasons.target))
    return [
        f"data.{split}: its {side}, {getattr(side_names, side)}, has the language of the training {other} "
        f"({reason}); is it the right file?"
        for side, other, reason in sides
        if reason
    ]


def _check_codes(
    data: DataConfig,
    corpus: ParallelFiles,
    languages: tuple[Language, Language],
    texts: tuple[list[str], list[str]],
) -> list[str]:
    """Check ``data.source_lang`` and ``data.target_lang`` against the text and the names of its sides."""
    codes = SidePair(data.source_lang, data.target_lang)
    code_scripts = SidePair(*map(script_of_language, codes))
    text_scripts = SidePair(languages[0].script, languages[1].script)
    names, finding = _side_names(corpus), ""
    expected = describe_language([], codes.source), describe_language([], codes.target)
    suffixes = [name.strip("'").removesuffix(".gz").rpartition(".")[2] for name in names]
    if (
        all(text_scripts)
        and code_scripts == (text_scripts.target, text_scripts.source)
        and text_scripts.source != text_scripts.target
    ):
        finding = f"is in {text_scripts.source} script and {names.target} in {text_scripts.target} script"
    elif detect_wrong_language(texts[0], *expected) and detect_wrong_language(texts[1], *reversed(expected)):
        finding = f"has the words of {codes.target} and {names.target} those of {codes.source}"
    elif all(map(is_same_language, codes, reversed(suffixes))) and not is_same_language(*codes):
        finding = f"is named {suffixes[0]} and {names.target} {suffixes[1]}"
    if finding:
        raise UserError(
            f"data.source_lang is {codes.source} and data.target_lang is {codes.target}, but "
            f"{names.source}, the source, {finding}: swap the two codes, or the sides in data.train"
        )
    return [
        f"data.{side}_lang is {getattr(codes, side)}, which is written in {getattr(code_scripts, side)} "
        f"script; {getattr(names, side)} is in {getattr(text_scripts, side)} script"
        for side in SidePair._fields
        if getattr(code_scripts, side)
        and getattr(text_scripts, side)
        and getattr(code_scripts, side) != getattr(text_scripts, side)
    ]


def _side_names(corpus: ParallelFiles) -> SidePair:
    if corpus.format == "parallel":
        return SidePair(corpus.files[0].name, corpus.files[1].name)
    return SidePair(*(f"column {column!r}" for column in corpus.columns_by_role.values()))


def _sample_pairs(corpus: ParallelFiles) -> tuple[list[str], list[str]]:
    """(sources, targets) of the first pairs; empty if they cannot be read, which is reported elsewhere."""
    try:
        pairs = list(islice(corpus.iter_pairs(), _MAX_PAIRS))
    except UserError:
        return [], []
    return [pair.source for pair in pairs], [pair.target for pair in pairs]

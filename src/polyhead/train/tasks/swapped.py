"""Sides of a corpus that were swapped, and codes of languages that are not those of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from polyhead.data.corpus import Corpus
from polyhead.data.languages import Language, describe_language, find_mistaken, sample_pairs
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError
from polyhead.text.scripts import script_of_language


class Pair(NamedTuple):
    """Something of the source and of the target."""

    source: str
    target: str


def check_sides(data: DataConfig, corpora: Mapping[str, Corpus]) -> list[str]:
    """A UserError where the sides of a split, or the codes of their languages, are swapped.

    Returns warnings about what only looks like a mistake. ``corpora`` are by their splits, "train" among them.
    """
    texts = sample_pairs(corpora["train"])
    languages = describe_language(texts[0]), describe_language(texts[1])
    found = _check_codes(data, corpora["train"], languages)
    for split in ("valid", "test"):
        if split in corpora and getattr(data, split):
            found += _check_split(data, split, corpora, languages)
    return found


def _check_split(
    data: DataConfig, split: str, corpora: Mapping[str, Corpus], languages: tuple[Language, Language]
) -> list[str]:
    texts = sample_pairs(corpora[split])
    why = Pair(find_mistaken(texts[0], *languages), find_mistaken(texts[1], *reversed(languages)))
    own, train = _side_names(corpora[split]), _side_names(corpora["train"])
    if why.source and why.target:
        names = getattr(data, split)
        way = f"; write data.{split}=[{','.join(reversed(names))}]" if len(names) == 2 else ""
        raise UserError(
            f"data.{split}: the sides are swapped: {own.source} is the source and has the language of the training target "
            f"{train.target} ({why.source}), {own.target} that of the training source {train.source} ({why.target}){way}"
        )
    sides = (("source", "target", why.source), ("target", "source", why.target))
    return [
        f"data.{split}: its {side}, {getattr(own, side)}, has the language of the training {other} ({reason}); is it the right file?"
        for side, other, reason in sides
        if reason
    ]


def _check_codes(data: DataConfig, corpus: Corpus, languages: tuple[Language, Language]) -> list[str]:
    """The codes source_lang and target_lang against the scripts of the text."""
    codes = Pair(data.source_lang, data.target_lang)
    wanted = Pair(*map(script_of_language, codes))
    there = Pair(languages[0].script, languages[1].script)
    names = _side_names(corpus)
    if all(there) and wanted == (there.target, there.source) and there.source != there.target:
        raise UserError(
            f"data.source_lang is {codes.source} and data.target_lang is {codes.target}, but {names.source}, the source, is in "
            f"{there.source} script and {names.target} in {there.target} script: swap the two codes, or the sides in data.train"
        )
    return [
        f"data.{side}_lang is {getattr(codes, side)}, which is written in {getattr(wanted, side)} script; "
        f"{getattr(names, side)} is in {getattr(there, side)} script"
        for side in Pair._fields
        if getattr(wanted, side) and getattr(there, side) and getattr(wanted, side) != getattr(there, side)
    ]


def _side_names(corpus: Corpus) -> Pair:
    if corpus.format == "parallel":
        return Pair(corpus.files[0].name, corpus.files[1].name)
    return Pair(f"column {corpus.source!r}", f"column {corpus.target!r}")

"""Scorers of translations and summaries: metrics of sacreBLEU, and others with the same methods."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyhead.core.array_types import Floats
from polyhead.core.errors import UserError
from polyhead.tokenizers.languages import script_of_language
from polyhead.tokenizers.scripts import UNSPACED_SCRIPTS, find_unspaced_script

# scripts without spaces between words need a tokenizer of their own, or BLEU treats a sentence as one word
BLEU_TOKENIZERS = dict.fromkeys(UNSPACED_SCRIPTS, "char") | {"Han": "zh"}
_TER_CHARACTER_SCRIPTS = ("Han", "Japanese")  # split by sacreBLEU's TER


class ScoredTexts(NamedTuple):
    """What a scorer is made for."""

    lang: str = ""
    references: Sequence[str] = ()  # the first of each output; without a known ``lang``, their script decides
    sources: Sequence[str] = ()  # of COMET
    path: str = ""  # the checkpoint of COMET


def bleu_tokenizer(lang: str, references: Sequence[str]) -> str:
    """The sacreBLEU tokenizer for the script of a language code; if unknown, for that of the references."""
    return BLEU_TOKENIZERS.get(find_script(lang, references), "13a")


def find_script(lang: str, references: Sequence[str]) -> str:
    """The script of a language code; if unknown, that of the references if it has no spaces, else ""."""
    return script_of_language(lang) or find_unspaced_script(references)


def make_bleu(texts: ScoredTexts, lowercase: bool = False) -> Any:
    """BLEU (Papineni et al., 2002; Post, 2018): 13a tokens, ``zh`` for Chinese, characters for other scripts
    without spaces.
    """
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=bleu_tokenizer(texts.lang, texts.references), lowercase=lowercase)


def make_chrf(texts: ScoredTexts) -> Any:
    """chrF2 (Popović, 2015)."""
    from sacrebleu.metrics import CHRF

    return CHRF()


def make_ter(texts: ScoredTexts) -> Any:
    """TER (Snover et al., 2006): edits and shifts per word of the references, in percent.

    Chinese and Japanese are split into characters; other scripts without spaces are a UserError.
    """
    from sacrebleu.metrics import TER

    script = find_script(texts.lang, texts.references)
    is_unspaced = script in UNSPACED_SCRIPTS
    if is_unspaced and script not in _TER_CHARACTER_SCRIPTS:
        raise UserError(
            f"ter counts words, and sacreBLEU splits none in {script} script: use chrf, or bleu on characters"
        )
    return TER(normalized=is_unspaced, asian_support=is_unspaced)


class MeanScorer(ABC):
    """A metric that is the mean of a value of each text, with the methods of a metric of sacreBLEU."""

    n_bootstrap: int | None = None
    seed: int | None = None
    settings: str  # how it is computed, for the signature

    @abstractmethod
    def score_texts(self, outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[float]:
        """The value of each output with its references."""

    def _extract_corpus_statistics(
        self, outputs: Sequence[str], streams: Sequence[Sequence[str | None]]
    ) -> Floats:
        """(N, 2): value and 1; each stream has a reference of every output, or None where it has no more."""
        rows = [[text for text in row if text is not None] for row in zip(*streams, strict=True)]
        return np.array([(value, 1.0) for value in self.score_texts(outputs, rows)])

    def _aggregate_and_compute(self, statistics: Floats) -> Any:
        return self._compute_score_from_stats(statistics.sum(0))

    def _compute_score_from_stats(self, sums: Sequence[float]) -> Any:
        from sacrebleu.metrics.base import Score

        return Score(type(self).__name__, float(sums[0] / sums[1]))

    def get_signature(self) -> str:
        drawn = f"bs:{self.n_bootstrap}|seed:{self.seed}|" if self.n_bootstrap else ""
        return f"{drawn}{self.settings}"


class Rouge(MeanScorer):
    """ROUGE (Lin, 2004) by rouge-score, as a metric of sacreBLEU: the mean F1 of the texts in percent.

    Of several references the one with the highest F1 counts. English has the words of published numbers, a-z
    and 0-9 after the Porter stemmer; other text has its words as they are, or its characters in a script
    without spaces. ``kind`` is rouge1, rouge2 or rougeL.
    """

    def __init__(self, texts: ScoredTexts, kind: str) -> None:
        from rouge_score.rouge_scorer import RougeScorer

        lang, references = texts.lang, texts.references
        is_english = lang[:2] == "en" or (not lang and all(map(str.isascii, references)))
        splits_at_spaces = bleu_tokenizer(lang, references) == "13a"
        self.kind = kind
        self.words = "porter" if is_english else "words" if splits_at_spaces else "characters"
        self.scorer = RougeScorer([kind], use_stemmer=True, tokenizer=None if is_english else self)
        self.settings = f"f1:mean|tok:{self.words}|rouge-score:{version('rouge-score')}"

    def tokenize(self, text: str) -> list[str]:
        """The words or characters of a text that is not English."""
        return re.findall(r"\w+" if self.words == "words" else r"\w", text.lower())

    def score_texts(self, outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        """The highest F1 of each output, in percent."""
        pairs = zip(references, outputs, strict=True)
        return [100 * self.scorer.score_multi(row, output)[self.kind].fmeasure for row, output in pairs]


class Comet(MeanScorer):
    """COMET (Rei et al., 2020) by unbabel-comet, from a local checkpoint: the mean of the texts.

    Of several references each is scored, and the mean counts. Nothing is downloaded for it but what the
    checkpoint itself names.
    """

    def __init__(self, texts: ScoredTexts) -> None:
        if len(texts.sources) != len(texts.references):
            raise UserError("comet reads the sources of the translations: use run.evaluate or polyhead eval")
        self.sources = texts.sources
        self.model = _load_comet(self.check(texts.path))
        self.settings = f"model:{Path(texts.path).name}|unbabel-comet:{version('unbabel-comet')}"

    @staticmethod
    def check(path: str) -> Path:
        """The file of a checkpoint, or of a folder as published; anything else is a UserError."""
        file = Path(path) / "checkpoints" / "model.ckpt" if Path(path).is_dir() else Path(path)
        if not path or file.suffix != ".ckpt" or not file.is_file():
            raise UserError(
                f"metric comet has no checkpoint at {path!r}: write comet:PATH with a .ckpt file, or a "
                "folder that has checkpoints/model.ckpt and hparams.yaml"
            )
        return file

    def score_texts(self, outputs: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        """The mean over its references of the score of each output."""
        rows = zip(self.sources, outputs, references, strict=True)
        items = [{"src": src, "mt": mt, "ref": ref} for src, mt, texts in rows for ref in texts]
        scores = iter(self.model.predict(items, batch_size=8, gpus=0, progress_bar=False).scores)
        return [float(np.mean([*islice(scores, len(texts))])) for texts in references]


@cache
def _load_comet(path: Path) -> Any:
    from comet import load_from_checkpoint

    return load_from_checkpoint(str(path))

"""The corpora of a task: their rules, their mixture, and what is reported of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from polyhead.config.corpora import CorpusConfig
from polyhead.config.data_config import DataConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.batching.mixture import Mixture
from polyhead.data.readers.rows import PartsReport
from polyhead.data.readers.text_filter import TextRules

LOSS_PREFIX = "loss_"  # of the names of metrics: the loss of one corpus


class CorpusShare(NamedTuple):
    """One row of the table of a mixture."""

    name: str
    texts: int  # that were read
    used: int
    share: float  # of an epoch
    passes: float  # over the corpus, in an epoch

    def describe(self, tr: Translate = tr) -> str:
        """'3,000 of 3,012 texts, 25.0% of an epoch, 2.00 passes'."""
        return tr(
            "{used:,} of {texts:,} texts, {share:.1%} of an epoch, {passes:.2f} passes", **self._asdict()
        )


def make_text_rules(corpus: CorpusConfig, split: str, *languages: str) -> TextRules:
    """The rules of a corpus; ``languages`` are the codes of its sides. Only training has ``max_texts``."""
    rules = corpus.filter.model_dump()
    if rules.pop("language"):
        if not any(languages):
            raise UserError(
                f"data.train: corpus {corpus.name!r}: filter.language needs source_lang or target_lang"
            )
        rules["languages"] = languages
    return TextRules(**rules, max_texts=corpus.max_texts if split == "train" else None)


def make_mixture(data: DataConfig, seed: int) -> Mixture | None:
    """The mixture of the training corpora; None for a single corpus without settings."""
    weights = tuple(corpus.weight for corpus in data.list_corpora("train"))
    return Mixture(weights, data.temperature, seed) if weights else None


def list_shares(mixture: Mixture | None, sizes: Sequence[int], report: PartsReport) -> list[CorpusShare]:
    """The share of each training corpus, of which an epoch counts ``sizes``; empty for a single one."""
    if mixture is None:
        return []
    rows = zip(report.parts, mixture.count_texts(sizes), sizes, strict=True)
    return [
        CorpusShare(part.source_label, texts, used, count / sum(sizes), count / size)
        for part, count, size in rows
        for texts, used in [part.n_texts]
    ]


def format_shares(shares: Sequence[CorpusShare]) -> list[str]:
    """The table of a mixture, one line for each corpus below a header; empty for a single one."""
    header = [tr(title) for title in ("corpus", "texts", "used", "share of an epoch", "passes")]
    rows = [
        [row.name, f"{row.texts:,}", f"{row.used:,}", f"{row.share:.1%}", f"{row.passes:.2f}"]
        for row in shares
    ]
    columns = [*zip(header, *rows, strict=True)] if rows else []
    widths = [max(map(len, column)) for column in columns]
    padded = [
        [f"{cell:{'>' if i else '<'}{widths[i]}}" for cell in column] for i, column in enumerate(columns)
    ]
    return ["  ".join(row) for row in zip(*padded, strict=True)]


def corpus_facts(shares: Sequence[CorpusShare], metrics: Mapping[str, float]) -> dict[str, str]:
    """Facts of each corpus for the README.md: its share, and its loss among the validation metrics."""
    facts = {f"corpus {row.name}": row.describe(format_english) for row in shares}
    losses = {name: value for name, value in metrics.items() if name.startswith(LOSS_PREFIX)}
    return facts | {
        f"valid loss of {name.removeprefix(LOSS_PREFIX)}": f"{value:.4f}" for name, value in losses.items()
    }


def name_losses(report: PartsReport, losses: Sequence[float]) -> dict[str, float]:
    """The loss of each of several corpora, by the name of its metric; empty for a single one."""
    names = [f"{LOSS_PREFIX}{part.source_label}" for part in report.parts]
    return dict(zip(names, losses, strict=True)) if names else {}

"""Models and batches of training steps: random ones, and those of real text.

Shapes: B rows, S longest source, T longest target or row, V vocabulary.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.cost.flops import count_forward, update_flops_factor
from polyhead.cost.workload import BatchShape
from polyhead.data.batching.collate import PairBatch, collate
from polyhead.data.batching.length_bucketing import plan_epoch
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.parallel_corpus import open_corpus, read_corpus_texts
from polyhead.data.stores.pair_store import PairStore
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.models import preset_config
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SMOOTHING = 0.1

Batch = PairBatch | TokenWindows


class Workload(NamedTuple):
    """A model, with random weights of one seed, and the batches of its training steps."""

    config: ModelConfig
    batches: Sequence[Batch]
    special_ids: tuple[int, int, int] = (0, 1, 2)  # padding, start and end, of an encoder-decoder
    smoothing: float = 0.0

    @property
    def labels(self) -> float:
        """Labels of a batch, the mean over batches."""
        return statistics.mean(count_labels(batch) for batch in self.batches)

    def count_flops(self) -> float:
        """Operations of an optimizer step, the mean over batches, without masked pairs of attention."""
        works = [work for batch in self.batches for work in count_forward(self.config, shape_of(batch))]
        forward = sum(work.total - work.times * work.masked_flops for work in works) / len(self.batches)
        return update_flops_factor(has_adapters=False) * forward

    def estimate_bytes(self) -> float:
        """Memory of a process with plain layers: weights with optimizer state, logits, activations."""
        c = self.config
        blocks = 12 * c.d_model**2 * (c.n_layers + (c.decoder_layers if c.kind == "encoder-decoder" else 0))
        weights = blocks + c.vocab_size * c.d_model
        activations = 100 * c.d_model * c.n_layers
        return 6e8 + 16 * weights + self.labels * (16 * c.vocab_size + activations)


def count_labels(batch: Batch) -> int:
    return int((batch.labels != IGNORE_INDEX).sum())


def shape_of(batch: Batch) -> BatchShape:
    if isinstance(batch, PairBatch):
        return BatchShape(*batch.target.shape, batch.source.size(1), count_labels(batch))
    return BatchShape(*batch.tokens.shape, 0, count_labels(batch))


def pair_workload(
    preset: str, vocab_size: int, rows: int, length: int, layers: int | None = None
) -> Workload:
    """An encoder-decoder with batches of random pairs, of ``length`` tokens on both sides."""
    draw = partial(torch.randint, 3, vocab_size, generator=torch.Generator().manual_seed(1))
    batches = []
    for _ in range(4):
        source, target, labels = (draw((rows, length)) for _ in range(3))
        batches.append(PairBatch(source, None, target, labels, rows * length))
    return Workload(translator_config(preset, vocab_size, layers), batches, smoothing=SMOOTHING)


def translator_config(
    preset: str, vocab_size: int, layers: int | None = None, dropout: float = 0.1
) -> ModelConfig:
    """The sizes of a preset, with ``layers`` in each stack."""
    changes = {} if layers is None else {"n_layers": layers, "n_decoder_layers": layers}
    return preset_config(preset, vocab_size, dropout=dropout, **changes)


def language_workload(
    sizes: Mapping[str, int], vocab_size: int, rows: int, length: int, layers: int | None = None
) -> Workload:
    """A decoder with batches of random rows of ``length`` tokens."""
    sizes = dict(sizes) if layers is None else {**sizes, "n_layers": layers}
    generator = torch.Generator().manual_seed(1)
    cells = [torch.randint(vocab_size, (rows, length + 1), generator=generator) for _ in range(4)]
    batches = [TokenWindows(cell[:, :-1].contiguous(), None, cell[:, 1:].contiguous()) for cell in cells]
    return Workload(language_config(vocab_size, length, **sizes), batches)


def corpus_workload(
    files: Sequence[Path] | None, config: ModelConfig, max_tokens: int, n_batches: int
) -> Workload:
    """A translator and the first large batches of real text in an epoch, which has them in random order.

    ``files`` are the two sides of a corpus; None: the embedded one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = open_corpus(files or write_corpus(folder, n=6000)["train"])
        tokenizer = train_tokenizer(read_corpus_texts(corpus), Choice("bpe"), config.vocab_size)
        store = PairStore.open_or_build(corpus, tokenizer, folder, max_len=128)
        plan = plan_epoch(store.source_lengths, store.target_lengths, max_tokens=max_tokens, seed=1, epoch=0)
        large = [rows for rows in plan if len(rows) * max(store.target_lengths[rows]) > 0.8 * max_tokens]
        batches = [collate(store, rows, tokenizer) for rows in large[:n_batches]]
    special_ids = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    return Workload(config, batches, special_ids, smoothing=SMOOTHING)


def text_workload(
    text: str, rows: int, length: int, *, has_documents: bool = False, layers: int | None = None
) -> Workload:
    """A character model, and twenty batches of rows at random places of the text.

    Documents are the text's paragraphs: positions restart at each, and attention does not leave it.
    """
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens, generator = torch.tensor([ids[c] for c in text]), torch.Generator().manual_seed(1)
    ends = itertools.accumulate(len(paragraph) + 2 for paragraph in text.split("\n\n")[:-1])
    bounds = torch.tensor([0, *ends])
    batches = []
    for _ in range(20):
        starts = torch.randint(0, len(tokens) - length - 1, (rows, 1), generator=generator)
        places = starts + torch.arange(length)
        first = bounds[torch.searchsorted(bounds, places, right=True) - 1]
        pos = places - torch.maximum(first, starts) if has_documents else None
        batches.append(TokenWindows(tokens[places], pos, tokens[places + 1], has_documents))
    sizes = {"d_model": 128, "n_layers": layers or 4, "n_heads": 4}
    return Workload(language_config(len(ids), length, **sizes), batches)


def language_config(vocab_size: int, length: int, **sizes: int) -> ModelConfig:
    """A decoder as nanoGPT trains it: no biases, no dropout, exact GELU, learned positions."""
    bare = {"bias": False}
    return ModelConfig(
        kind="decoder", vocab_size=vocab_size, max_len=length, dropout=0.0, norm_first=True,
        position="learned", norm={"name": "layernorm", **bare}, attention={"name": "softmax", **bare},
        init="normal", feed_forward={"name": "gelu", **bare}, scale_embedding=False, **sizes,
    )  # fmt: skip

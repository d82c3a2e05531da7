"""Why text is cut into subwords, and what a larger vocabulary gives and costs."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from polyhead import Choice
from polyhead.core.i18n import load_catalog
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead_lab.models import list_source_files
from polyhead_lab.registry import (
    EXPERIMENTS,
    SEEDS_NOTE,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
)
from polyhead_lab.statistics import (
    format_mean,
    format_mean_percent,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
)

N_BASE_TOKENS = len(SPECIAL_TOKENS) + 256  # tokens without any merge: special tokens and bytes
# words by how often the training text has them: (name, from, below)
GROUPS = (("never", 0, 1), ("once", 1, 2), ("2 to 9 times", 2, 10), ("10 to 99 times", 10, 100),
          ("100 times or more", 100, 10**9))  # fmt: skip
_RARE, _FREQUENT = ("never", "once"), "100 times or more"
_BULK = 0.9  # share of words that counts as most of them
_FEW_EXAMPLES = 100  # a token with fewer is rare (Gowda & May, 2020)
_WIDTH = 512  # of the embeddings, to give a size of their table
_WORD = re.compile("[A-Za-z]+")


@EXPERIMENTS.register("tokens")
def measure_tokens(lab: LabContext) -> ExperimentResult:
    """Subwords: frequent and rare words, unknown words, and length of text by size of the vocabulary."""
    sizes = lab.pick_size([N_BASE_TOKENS, 512, 1024, 2048, 4096], [N_BASE_TOKENS, 400, 512])
    documents = read_docstrings()[:: lab.pick_size(1, 10)]
    fits: dict[int, list[VocabularyFit]] = {size: [] for size in sizes}
    for seed in lab.make_seeds(5):
        train, held_out = hold_out_documents(documents, seed)
        for size in sizes:
            fits[size].append(fit_vocabulary(train, held_out, size))
        lab.info(f"seed {seed}: {fits[sizes[-1]][-1].tokens_per_word:.2f} tokens per word of {sizes[-1]:,}")
    last, merged = sizes[-1], sizes[1:]
    lengths = {size: [fit.tokens_per_word for fit in fits[size]] for size in sizes}
    # attention compares pairs of tokens
    pairs = {size: [(n / b) ** 2 for n, b in zip(lengths[size], lengths[sizes[0]], strict=True)]
             for size in sizes}  # fmt: skip
    savings = [[a - b for a, b in zip(lengths[s], lengths[t], strict=True)] for s, t in pairwise(sizes)]
    single = {name: [fit.single_token[name] for fit in fits[last]] for name, _, _ in GROUPS}
    rare_tokens = {size: [fit.rare_tokens for fit in fits[size]] for size in merged}
    unknown = {size: [fit.unknown_words for fit in fits[size]] for size in sizes}
    other = {size: [fit.other_language for fit in fits[size]] for size in sizes}
    lost = sum(fit.lost_words for size in sizes for fit in fits[size])
    new_words = [fit.new_words for fit in fits[last]]

    claims = [
        Claim(
            "Frequent words are one token; rare words fall into several.",
            "Sennrich et al., 2016, section 3.2",
            f"With {last:,} tokens, one token each: {format_mean_percent(single[_FREQUENT])} of the words "
            f"that the training text has 100 times or more, {format_mean_percent(single['once'])} of those "
            f"that it has once, {format_mean_percent(single['never'])} of those that it lacks (target: most, "
            f"at least {100 * _BULK:.0f} %, of the frequent ones, at most {100 - 100 * _BULK:.0f} % of the "
            "others).",
            verdict_all(
                [
                    verdict_above(single[_FREQUENT], _BULK),
                    *(verdict_below(single[name], 1 - _BULK) for name in _RARE),
                ]
            ),
        ),
        Claim(
            "No word is unknown, not even one that the training text lacks.",
            "Sennrich et al., 2016, abstract; Radford et al., 2019, section 2.2, for bytes",
            f"Words that are not restored exactly from their tokens: {lost}, with any size; on average "
            f"{fmean(new_words):.0f} different words of the held-out text are new. A list of the {last:,} "
            f"most frequent words would lack {format_mean_percent(unknown[last])} of the held-out text.",
            verdict_all([lost == 0, verdict_above(unknown[last], 0.0)]),
        ),
        Claim(
            "More merges give fewer tokens, and so less work for attention.",
            "Sennrich et al., 2016, table 1",
            f"Tokens per word of held-out text: {format_mean(lengths[sizes[0]])} without merges, "
            f"{format_mean(lengths[last])} with {last:,} tokens. Attention compares "
            f"{format_mean_percent(pairs[last])} of the pairs.",
            verdict_all(verdict_less(lengths[t], lengths[s]) for s, t in pairwise(sizes)),
        ),
        Claim(
            "Each doubling of the vocabulary shortens text less than the one before.",
            "compare Sennrich et al., 2016, table 1: 550 million characters, 112 million tokens, 100 million "
            "words",
            f"Tokens per word saved, from size to size: {', '.join(format_mean(s) for s in savings)}. The "
            "table of embeddings doubles each time.",
            verdict_all(verdict_less(t, s) for s, t in pairwise(savings)),
        ),
        Claim(
            "The larger the vocabulary, the more of its tokens are rare, with few examples to learn from.",
            "Gowda & May, 2020: at least 100 examples for 95 % of the tokens",
            f"Merged tokens with fewer than {_FEW_EXAMPLES} occurrences in the training text: "
            f"{format_mean_percent(rare_tokens[merged[0]])} with {merged[0]:,} tokens, "
            f"{format_mean_percent(rare_tokens[last])} with {last:,}.",
            verdict_all(verdict_less(rare_tokens[s], rare_tokens[t]) for s, t in pairwise(merged)),
        ),
        Claim(
            "A language that the training text lacks takes more tokens for the same content.",
            "Petrov et al., 2023",
            f"The same messages in Chinese take {format_mean(other[last])} times as many tokens as in "
            f"English with {last:,} tokens, {fmean(other[sizes[0]]):.3g} times without merges.",
            verdict_above(other[last], 1.0),
        ),
    ]
    figures: list[Figure] = [
        LinePlot(
            "Tokens of a word, by its frequency in the training text",
            "size of the vocabulary",
            {
                name: [(size, fmean(fit.word_lengths[name] for fit in fits[size])) for size in sizes]
                for name, _, _ in GROUPS
            },
            "Means over different words of the held-out text. 1 is the least.",
            log=True,
            from_zero=True,
        ),
        LinePlot(
            "Words of the held-out text that are unknown, in percent",
            "size of the vocabulary",
            {"whole words": [(size, 100 * fmean(unknown[size])) for size in sizes],
"subwords": [(size, 0.0) for size in sizes]},
            "Whole words: the most frequent ones of the training text. With bytes as the smallest pieces, "
            "nothing is unknown.",
            log=True,
            from_zero=True,
        ),
        DotPlot(
            f"Words that are one token of {last:,}, by frequency in the training text",
            "percent of different held-out words",
            {name: [100 * share for share in shares] for name, shares in single.items()},
            SEEDS_NOTE,
        ),
        ResultTable(
            "All numbers",
            ("vocabulary", "tokens per word", "pairs of tokens", f"embeddings, d_model {_WIDTH}",
             "rare tokens", "unknown to a list of words", "Chinese / English"),
            [
                (size, format_mean(lengths[size]), format_mean_percent(pairs[size]), size * _WIDTH,
                 format_mean_percent(rare_tokens[size]) if size in rare_tokens else "none",
                 format_mean_percent(unknown[size]), f"{fmean(other[size]):.3g}")
                for size in sizes
            ],
            "Pairs of tokens: the number that attention compares in the same text, relative to bytes.",
        ),
    ]  # fmt: skip
    words = [len(_WORD.findall(text)) for text in documents]
    return ExperimentResult(
        "Why subwords",
        "A model needs a finite list of tokens, but text has no finite list of words. Byte-pair encoding "
        "starts with the bytes and merges the most frequent pair of neighbours, again and again. What does "
        "each merge give, and what does it cost?",
        claims,
        figures,
        f"Text: the docstrings of this package, {sum(words):,} words in {len(documents)} files. For each of "
        f"{len(fits[last])} seeds a random tenth of the files is held out; byte-level BPE (bpe) learns from "
        "the others, with the sizes of the table. A word is a run of letters. Tokens per word count all "
        "tokens of the text, also those of punctuation and line ends.\n\nThe messages in two languages are "
        "those of the pages of the experiments.",
    )  # fmt: skip


class VocabularyFit(NamedTuple):
    """How well a vocabulary of one size fits the held-out text; words are counted once where not stated."""

    tokens_per_word: float  # of the running text
    word_lengths: dict[str, float]  # mean tokens of a word, by group
    single_token: dict[str, float]  # share of the words that are one token, by group
    new_words: int  # words that the training text lacks
    lost_words: int  # words that their tokens do not restore
    unknown_words: float  # share of the running words that a list of as many words lacks
    rare_tokens: float  # share of the merged tokens with few occurrences in the training text
    other_language: float  # tokens of the same messages in Chinese, relative to English


def fit_vocabulary(train: Sequence[str], held_out: Sequence[str], size: int) -> VocabularyFit:
    """Train a BPE vocabulary of a size and measure it on held-out text."""
    tokenizer = train_tokenizer(train, Choice("bpe"), size)
    counts = Counter(word for text in train for word in _WORD.findall(text))
    listed = {word for word, _ in counts.most_common(size)}
    running = [word for text in held_out for word in _WORD.findall(text)]
    words = sorted(set(running))
    encoded = dict(zip(words, tokenizer.encode([f" {word}" for word in words]), strict=True))
    groups = {name: [len(encoded[w]) for w in words if low <= counts[w] < high] for name, low, high in GROUPS}
    decoded = tokenizer.decode(list(encoded.values()))
    messages = load_catalog("zh", "lab")
    return VocabularyFit(
        count_encoded(tokenizer, held_out) / len(running),
        {name: fmean(lengths) for name, lengths in groups.items()},
        {name: lengths.count(1) / len(lengths) for name, lengths in groups.items()},
        len(groups["never"]),
        sum(text != f" {word}" for word, text in zip(words, decoded, strict=True)),
        sum(word not in listed for word in running) / len(running),
        measure_rare_tokens(tokenizer, train),
        count_encoded(tokenizer, list(messages.values())) / count_encoded(tokenizer, list(messages)),
    )


def measure_rare_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Share of the merged tokens that occur in the texts less than ``_FEW_EXAMPLES`` times; 0 without any."""
    counts = Counter(token for row in tokenizer.encode(texts) for token in row)
    merged = range(N_BASE_TOKENS, tokenizer.vocab_size)
    return sum(counts[token] < _FEW_EXAMPLES for token in merged) / max(1, len(merged))


def count_encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Number of tokens of all texts."""
    return sum(map(len, tokenizer.encode(texts)))


def hold_out_documents(documents: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Training documents, and a random tenth that is held out."""
    shuffled = random.Random(seed).sample(documents, len(documents))
    n_held_out = len(documents) // 10
    return shuffled[n_held_out:], shuffled[:n_held_out]


def read_docstrings() -> list[str]:
    """Read the docstrings of this package, one text per file: English prose that is always at hand."""
    texts = ["\n\n".join(find_docstrings(file.read_text(encoding="utf-8"))) for file in list_source_files()]
    return [text for text in texts if text]


def find_docstrings(source: str) -> Iterator[str]:
    """Docstrings of the module, classes and functions of a Python source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(None, [ast.get_docstring(node)])

"""The head that links *it* to its noun, in a grammar in which that noun is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, product
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.compute_attention import compute_self_attention
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.registry import (
    EXPERIMENTS,
    SEEDS_NOTE,
    AttentionPlot,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
    SeedValues,
)
from polyhead_lab.short_training import (
    FIRST_SYMBOL,
    PAD,
    Drawn,
    SyntheticTask,
    TrainingResult,
    collect_first_curves,
    compute_head_input,
    make_small_config,
    run_short_training,
    shrink_if_quick,
)
from polyhead_lab.statistics import format_mean_percent, verdict_above, verdict_all, verdict_less


def parse_words(text: str) -> list[tuple[str, ...]]:
    """``dog:Hund cat:Katze`` -> pairs of an English and a German word."""
    return [tuple(pair.split(":")) for pair in text.split()]


# articles of a subject, of an accusative and of a dative object -> nouns; case of the object -> verbs
NOUNS = [(articles.split(), noun) for articles, nouns in {
    "der den dem": "dog:Hund bird:Vogel fish:Fisch wolf:Wolf fox:Fuchs tiger:Tiger frog:Frosch ape:Affe",
    "die die der": "cat:Katze mouse:Maus cow:Kuh goat:Ziege duck:Ente goose:Gans snake:Schlange owl:Eule",
    "das das dem": "horse:Pferd sheep:Schaf pig:Schwein hen:Huhn camel:Kamel zebra:Zebra lamb:Lamm deer:Reh",
}.items() for noun in parse_words(nouns)]  # fmt: skip
_VERBS = [(case, parse_words(verb.replace("+", " "))) for case, verbs in {
    1: "barking:bellend+at:an looking:blickend+at:auf waiting:wartend+for:auf chasing:jagend calling:rufend",
    2: "hiding:versteckt+from:vor running:laufend+from:vor playing:spielend+with:mit following:folgend",
}.items() for verb in verbs.split()]  # fmt: skip
ADJECTIVES = [parse_words(adjectives) for adjectives in (  # of a subject, of an object
    "angry:wütend tired:müde hungry:hungrig lonely:einsam curious:neugierig nervous:nervös thirsty:durstig",
    "small:klein hidden:verborgen loud:laut pretty:hübsch strange:fremd new:neu rare:selten",
)]  # fmt: skip
ADVERBS = parse_words("today:heute now:jetzt often:oft")


class Sentence(NamedTuple):
    """An English sentence, its German word by word, and the places of *it* and of both nouns."""

    words: Sequence[str]
    german: Sequence[str]  # of *it* the noun that it means
    pronoun: int
    noun: int  # that *it* means
    other_noun: int


def build_sentence(
    subject: int, object_: int, verb: int, answer: int, adjective: int, adverb: int = -1
) -> Sentence:
    """The sentence of these words; ``answer`` 0: an adjective of the subject, 1: of the object."""
    (subject_articles, subject_noun), (object_articles, object_noun) = NOUNS[subject], NOUNS[object_]
    case, verb_words = _VERBS[verb]
    start = [*ADVERBS[adverb : adverb + 1], ("the", subject_articles[0]), subject_noun]
    main = [*start, ("is", "ist"), *verb_words, ("the", object_articles[case]), object_noun]
    pronoun = ("it", (subject_noun, object_noun)[answer][1])
    words = [*main, ("because", "weil"), pronoun, ("is", "ist"), ADJECTIVES[answer][adjective], (".", ".")]
    english, german = zip(*words, strict=True)
    nouns = len(start) - 1, len(main) - 1
    return Sentence(english, german, len(main) + 1, nouns[answer], nouns[1 - answer])


VOCABULARY = {word: FIRST_SYMBOL + i for i, word in enumerate(dict.fromkeys(
    word for n in range(len(NOUNS)) for side in
    build_sentence(n, n, n % len(_VERBS), n % 2, n % len(ADJECTIVES[0]), n % len(ADVERBS))[:2]
    for word in side
))}  # fmt: skip


def split_noun_pairs(seed: int) -> Sequence[Sequence[tuple[int, int]]]:
    """Unordered pairs of nouns for training, validation (a sixth) and test (a sixth)."""
    pairs = list(combinations(range(len(NOUNS)), 2))
    np.random.default_rng(seed).shuffle(pairs)
    return pairs[92:], pairs[:46], pairs[46:92]


def draw_sentences(rng: np.random.Generator, n: int, pairs: Sequence[tuple[int, int]]) -> list[Sentence]:
    """``n`` random sentences with these pairs of nouns, in both orders; half begin with an adverb."""
    sizes = len(pairs), 2, len(_VERBS), 2, len(ADJECTIVES[0]), 2 * len(ADVERBS)
    draws = rng.integers(sizes, size=(n, len(sizes))).tolist()
    return [build_sentence(*pairs[pair][:: 1 - 2 * swap], *rest) for pair, swap, *rest in draws]


def encode_sentences(sentences: Sequence[Sentence]) -> Drawn:
    """Tokens (B, T), twice, and the German word of each as its label."""
    shape = len(sentences), max(len(sentence.words) for sentence in sentences)
    tokens, labels = np.full(shape, PAD), np.full(shape, IGNORE_INDEX)
    for row, (words, german, *_) in enumerate(sentences):
        tokens[row, : len(words)] = [VOCABULARY[word] for word in words]
        labels[row, : len(words)] = [VOCABULARY[word] for word in german]
    return tokens, tokens, labels


def make_gloss_task(draw: Callable[[np.random.Generator, int], Sequence[Sentence]]) -> SyntheticTask:
    """Translate every word in its place, and *it* by its noun."""
    return SyntheticTask(
        FIRST_SYMBOL + len(VOCABULARY), 16, lambda rng, rows: encode_sentences(draw(rng, rows)),
        kind="encoder",
    )  # fmt: skip


def align_words(tokens: Sequence[str], words: Sequence[str]) -> list[list[int]]:
    """Places of the tokens of each word; special tokens belong to none."""
    places: list[list[int]] = [[] for _ in words]
    text, owners, at = "".join(words), [i for i, word in enumerate(words) for _ in word], 0
    for place, token in enumerate(tokens):
        piece = token.strip(" ▁").removeprefix("##").lower()
        if piece and text.startswith(piece, at):
            places[owners[at]].append(place)
            at += len(piece)
    if at < len(text) or not all(places):
        raise UserError(f"tokens {list(tokens)} do not spell the words of {' '.join(words)!r}")
    return places


class HeadScores(NamedTuple):
    """Of each head, the share of sentences in which *it* attends most to its noun: (layers, heads)."""

    of_two: Tensor  # more than to the other noun
    of_all: Tensor  # more than to any other word


def score_heads(maps: Sequence[AttentionMap], sentences: Sequence[Sentence]) -> HeadScores:
    """Score the heads of any model, by its self-attention map of each sentence.

    Attention to a word is the sum over its tokens, from a word the mean (Clark et al., 2019, section 4).
    """
    hits = []
    for attention, sentence in zip(maps, sentences, strict=True):
        places = align_words(attention.source_tokens, sentence.words)
        rows = torch.as_tensor(attention.weights)[:, :, places[sentence.pronoun]].mean(2)
        words = torch.stack([rows[..., of_word].sum(-1) for of_word in places], -1)
        is_noun = words.argmax(-1) == sentence.noun
        hits.append(torch.stack([words[..., sentence.noun] > words[..., sentence.other_noun], is_noun]))
    return HeadScores(*torch.stack(hits).double().mean(0))


def compute_map(model: Any, sentence: Sentence) -> AttentionMap:
    """The attention map of a sentence, in a model of this grammar."""
    attention: Any = compute_self_attention(model, torch.from_numpy(encode_sentences([sentence])[0]))
    return AttentionMap(sentence.words, sentence.words, attention.weights)


@torch.inference_mode()
def resolve_pronouns(model: Any, sentences: Sequence[Sentence], layer: int = 0, change: Any = None) -> Tensor:
    """Share of sentences in which *it* is translated by its noun, and by the other one: (2,).

    ``change`` changes the values (B, T, C) of the tokens in one layer.
    """
    task = make_gloss_task(lambda rng, rows: sentences)
    batch, rows = task.batch(0, 0), range(len(sentences))
    _, _, pronouns, *places = zip(*sentences, strict=True)
    v_proj = model.encoder.stack.layers[layer].attn.v_proj
    hook = v_proj.register_forward_hook(lambda module, inputs, values: change and change(values))
    predicted = model.head(compute_head_input(model, batch)[rows, pronouns]).argmax(-1)
    hook.remove()
    return torch.stack([(predicted == batch.labels[rows, nouns]).double().mean() for nouns in places])


def swap_values(values: Tensor, sentences: Sequence[Sentence]) -> None:
    """Swap the values (B, T, C) of both nouns of each sentence."""
    for row, (_, _, _, noun, other_noun) in zip(values, sentences, strict=True):
        row[[noun, other_noun]] = row[[other_noun, noun]]


class HeadsMeasurement(NamedTuple):
    """One model on its test sentences; the best head is that of its validation sentences."""

    run: TrainingResult
    scores: HeadScores
    costs: Tensor  # accuracy lost without each head (layers, heads)
    best: tuple[int, int]  # layer and head, from 0
    shares: dict[str, float]  # accuracy, of_two and of_all of the best head, ...


DESIGNS: dict[str, dict[str, Any]] = {"pre-norm": {}, "BERT": {
    "norm_first": False, "position": Choice("learned"), "feed_forward": Choice("gelu"),
}}  # fmt: skip
N_LAYERS, N_HEADS = 2, 4


def measure_links(lab: LabContext, changes: dict[str, Any], seed: int) -> HeadsMeasurement:
    """Train a design on sentences of the training pairs, and score its heads on those of the others."""
    train, *held_out = split_noun_pairs(seed)
    task = shrink_if_quick(lab, make_gloss_task(partial(draw_sentences, pairs=train)))
    config = make_small_config(task, n_layers=N_LAYERS, n_heads=N_HEADS, **changes)
    rng, sizes = np.random.default_rng([seed, 1]), lab.pick_size((200, 500), (10, 20))
    valid, test = (draw_sentences(rng, n, pairs) for n, pairs in zip(sizes, held_out, strict=True))
    run = run_short_training(config, task, seed=seed, steps=lab.pick_size(600, 4), lr=4e-3)
    choice, scores = (score_heads([compute_map(run.model, s) for s in part], part) for part in (valid, test))
    best = divmod(int(choice.of_two.argmax()), N_HEADS)

    def zero_head(v: Tensor, head: int) -> None:
        v.unflatten(-1, (N_HEADS, -1))[:, :, head] = 0

    accuracy, costs = resolve_pronouns(run.model, test)[0], torch.zeros(N_LAYERS, N_HEADS)
    for layer, head in np.ndindex(N_LAYERS, N_HEADS):
        change = partial(zero_head, head=head)
        costs[layer, head] = accuracy - resolve_pronouns(run.model, test, layer, change)[0]
    first, swap = fmean(s.noun < s.other_noun for s in test), partial(swap_values, sentences=test)
    shares = {
        "accuracy": accuracy.item(), "baseline": max(first, 1 - first),
        "of_two": scores.of_two[best].item(), "of_all": scores.of_all[best].item(),
        "swapped": resolve_pronouns(run.model, test, best[0], swap)[1].item(),
        "cost": costs[best].item(), "mean_cost": (costs.sum() - costs[best]).item() / (costs.numel() - 1),
    }  # fmt: skip
    return HeadsMeasurement(run, scores, costs, best, shares)


@EXPERIMENTS.register("coreference")
def measure_coreference(lab: LabContext) -> ExperimentResult:
    """What 'it' refers to: heads that link it to its noun, scored against the truth and changed."""
    first: dict[str, HeadsMeasurement] = {}
    shares: dict[str, SeedValues] = {}
    for seed, (design, changes) in product(lab.make_seeds(5), DESIGNS.items()):
        measured = measure_links(lab, changes, seed)
        first.setdefault(design, measured)
        for name, share in measured.shares.items():
            shares.setdefault(name, {}).setdefault(design, []).append(share)
        lab.info(f"seed {seed}, {design}: best head right in {measured.shares['of_two']:.1%}")
    return ExperimentResult(
        "What 'it' refers to",
        "'The dog is barking at the bird because it is angry': the dog is. '... because it is small': the "
        "bird is. A well-known picture shows a head of attention that links 'it' to its noun. Is there such "
        "a head, how often is it right, and does the model use it?",
        make_link_claims(shares),
        make_link_figures(first, shares),
        f"Sentences of a grammar: {len(NOUNS)} nouns, {len(_VERBS)} verbs, {2 * len(ADJECTIVES[0])} "
        "adjectives, half of them for the subject and half for the object; half of the sentences begin "
        "with an adverb, which moves every word. Each word is translated in its place into German, and 'it' "
        "by the noun that it means. Of the pairs of nouns a sixth is for validation, where the head is "
        f"chosen, and a sixth for the test, with {lab.pick_size(500, 20)} sentences per seed; training has "
        f"neither.\n\nEncoders of {N_LAYERS} layers, {N_HEADS} heads, d_model 64; {lab.pick_size(600, 4)} "
        f"steps of 64 rows, cosine, learning rate 4e-3, {len(lab.make_seeds(5))} seeds, which share data "
        "between designs. pre-norm: sinusoidal positions, ReLU; BERT: post-norm, learned positions, GELU.",
    )


def make_link_claims(shares: dict[str, SeedValues]) -> list[Claim]:
    """The claims; each must hold for every design."""

    def describe(name: str) -> str:
        return ", ".join(f"{design} {format_mean_percent(v)}" for design, v in shares[name].items())

    baseline = f"Always the first or always the nearest noun, the better one: {describe('baseline')}."
    return [
        Claim(
            "A Transformer learns what 'it' refers to, also with nouns that it never saw together.",
            "Uszkoreit, 2017", f"Right nouns: {describe('accuracy')} (learned: at least 95 %). {baseline}",
            verdict_all(verdict_above(values, 0.95) for values in shares["accuracy"].values()),
        ),
        Claim(
            "A head attends from 'it' to the noun that it means.",
            "Uszkoreit, 2017, with a picture; Clark et al., 2019, section 4, for BERT",
            f"Sentences in which the best head attends to it more than to the other noun: "
            f"{describe('of_two')}. More than to any other word: {describe('of_all')} (target: half). "
            f"{baseline}",
            verdict_all([*map(verdict_less, shares["baseline"].values(), shares["of_two"].values()),
                         *(verdict_above(values, 0.5) for values in shares["of_all"].values())]),
        ),
        Claim(
            "What 'it' attends to decides: if both nouns swap their values there, 'it' is the other noun.",
            "implied by the picture; Jain & Wallace, 2019, doubt that attention explains an output",
            f"Sentences in which it is: {describe('swapped')} (target: half).",
            verdict_all(verdict_above(values, 0.5) for values in shares["swapped"].values()),
        ),
        Claim(
            "Without this head more answers are wrong than without another one.",
            "implied by the picture; Michel et al., 2019, could remove most heads",
            f"Right nouns lost without the best head: {describe('cost')}. Without another one, on average: "
            f"{describe('mean_cost')}.",
            verdict_all(map(verdict_less, shares["mean_cost"].values(), shares["cost"].values())),
        ),
    ]  # fmt: skip


def make_link_figures(first: dict[str, HeadsMeasurement], shares: dict[str, SeedValues]) -> list[Figure]:
    """The picture of *it* in the best head of the first model, and the scores of all heads."""
    run, _, _, best, _ = next(iter(first.values()))
    runs = {design: [measured.run] for design, measured in first.items()}
    return [
        *(AttentionPlot(
            f"The best head: {' '.join(sentence.words)}", sentence.words,
            compute_map(run.model, sentence).weights[best].tolist(),
            "Each row is a word; the stronger the colour of a cell, the more it attends to the word above. "
            f"See the row of 'it'. Layer {best[0] + 1}, head {best[1]} of the first model.",
        ) for sentence in (build_sentence(0, 1, 0, answer, 0) for answer in (0, 1))),
        DotPlot("The best head attends from 'it' most to its noun", "% of test sentences", {
            f"{design}: {label}": [100 * value for value in values]
            for name, label in (("of_two", "of two nouns"), ("of_all", "of all words"))
            for design, values in shares[name].items()
        }, SEEDS_NOTE),
        LinePlot("Training loss (first seed)", "step", collect_first_curves(runs), from_zero=True),
        ResultTable(
            "All heads (first seed)",
            ("layer and head", "most to its noun, of two", "of all words", "right nouns lost without it"),
            [(f"{design}, {layer + 1}.{head}", *(f"{100 * values[layer, head].item():.1f} %"
                for values in (*measured.scores, measured.costs)))
                for design, measured in first.items() for layer, head in np.ndindex(N_LAYERS, N_HEADS)],
            "A head of the first layer cannot know the noun: it may tell 'it' the adjective, by which the "
            "second layer finds the noun.",
        ),
    ]  # fmt: skip

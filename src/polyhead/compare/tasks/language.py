"""Language models compared: the loss of rows of validation text, and perplexity by words and characters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import torch

from polyhead.analysis.perplexity import Perplexity
from polyhead.compare.measure import by_row, counted, loss_and_ppl
from polyhead.compare.significance import Floats, mean_of
from polyhead.compare.tasks.base import COMPARED, LOSS_OF_TOKENS, Found, Measure, Piece, Words, measured_split
from polyhead.data.rows import Rows, collate_rows
from polyhead.data.token_store import TokenStore
from polyhead.generate.loop import generate
from polyhead.generate.sampling import Sampling
from polyhead.generate.settings import ends_of
from polyhead.models import CausalLM
from polyhead.nn.loss import IGNORED
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.language import LanguageModel
from polyhead.train.tasks.next_token import features
from polyhead.train.tasks.plain_text import store_of

# texts that go on side by side while speed is measured, and tokens of each at most
PROMPTS, LONGEST = 32, 128


def word_perplexity(sums: Floats) -> Floats:
    """exp of nats a word: (R, 2) -> (R,), from sums of -log p and of words."""
    return np.exp(np.minimum(mean_of(sums), 700.0))


def bits(sums: Floats) -> Floats:
    """Bits a character: (R, 2) -> (R,), from sums of -log p and of characters."""
    return mean_of(sums) / math.log(2)


@COMPARED.register("language-model")
class LanguageModels:
    """A unit is a row of ``data.max_len`` tokens."""

    measures = (
        LOSS_OF_TOKENS,
        Measure("word_ppl", "word ppl", "perplexity of a word", word_perplexity, True, 2, 1, of_tokens=True),
        Measure("bits_per_char", "bits/char", "bits a character", bits, True, 3, 3, of_tokens=True),
    )
    words = Words(
        "rows of text",
        "of a forward pass over a full row, for each of its tokens",
        f"greedy, up to {PROMPTS} texts side by side",
    )

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    def tokens_per_step(self, task: LanguageModel) -> float:
        """The mean number of tokens that a batch asks for: of rows of the same length all, but beginnings of documents."""
        return counted(task)

    def typical(self, task: LanguageModel) -> Piece:
        """A row of training text, which is never cut short: all rows are alike."""
        return piece(task.batch(task.plan(0)[0][:1]))

    def pieces(self, task: LanguageModel) -> Iterator[Piece]:
        """The validation text, so many rows at a time as in training."""
        return map(piece, batches(task, task.valid))

    def quality(self, run: Run, recipe: Recipe, task: LanguageModel) -> tuple[Found, Found]:
        """Loss of the validation text, row by row; by words and characters of the test text, if there is one."""
        assert isinstance(run.model, CausalLM)
        nll, tokens = text_nll, text_tokens = losses(run.model, task, task.valid)
        store = task.valid
        if recipe.data.test:
            store = store_of(recipe, "test", run.tokenizer)
            text_nll, text_tokens = losses(run.model, task, store)
        of = Perplexity(sum(text_nll), sum(text_tokens), store.report.words, store.report.characters)
        found = {
            "split": measured_split(recipe),
            **loss_and_ppl(sum(nll), sum(tokens)),
            "word_ppl": of.per_word,
            "bits_per_char": of.bits_per_character,
            "signatures": {},
        }
        text = {"nll": text_nll, "tokens": text_tokens, "words": of.words, "characters": of.characters}
        return found, {"nll": nll, "tokens": tokens, "text": text}

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """-log p of every row, and its share of what that is divided by.

        A row may begin and end within a word, so words and characters are shared out to the rows by their tokens.
        """
        text = kept["text"]
        share = np.asarray(text["tokens"], dtype=np.float64) / sum(text["tokens"])
        return {
            "loss": np.stack([kept["nll"], kept["tokens"]], 1).astype(np.float64),
            "word_ppl": np.stack([text["nll"], share * max(text["words"], 1)], 1),
            "bits_per_char": np.stack([text["nll"], share * max(text["characters"], 1)], 1),
        }

    def decode_speed(self, run: Run, recipe: Recipe) -> float:
        """New tokens a second after prompts of half a row from the validation text."""
        width = min(recipe.data.max_len, run.config.max_len, LONGEST)
        half = max(1, width // 2)
        store = store_of(recipe, "valid", run.tokenizer)
        starts = np.linspace(0, max(0, len(store) - half), PROMPTS).astype(np.int64)
        prompts = [store.ids[start : start + half].tolist() for start in starts]
        going_on(run, prompts[:2], min(8, half))  # what is allocated and compiled once is not counted
        start = time.perf_counter()
        made = going_on(run, prompts, half)
        return made / (time.perf_counter() - start)

    def memory(self, run: Run) -> None:
        """There is nothing but its own output."""


def piece(batch: Rows) -> Piece:
    """A batch as it is measured."""
    real = batch.labels != IGNORED
    return Piece(lambda model: features(model, beside(model, batch)), int(real.sum()), {"stack": real})


def batches(task: LanguageModel, store: TokenStore) -> Iterator[Rows]:
    """A text cut into rows, in its order: each of its tokens but the first is predicted once."""
    starts = np.arange(0, len(store) - 1, task.width)
    for at in range(0, len(starts), task.rows):
        yield collate_rows(store, starts[at : at + task.rows], task.width, documents=len(store.begins) > 1)


@torch.no_grad()
def losses(model: CausalLM, task: LanguageModel, store: TokenStore) -> tuple[list[float], list[int]]:
    """-log p of the tokens of every row, and how many they are."""
    found: list[tuple[float, int]] = []
    for batch in batches(task, store):
        batch = beside(model, batch)
        found += by_row(model.head, model.eval().features(batch.tokens, batch.pos), batch.labels)
    return [nll for nll, _ in found], [n for _, n in found]


def going_on(run: Run, prompts: list[list[int]], n: int) -> int:
    """Go on from some prompts greedily, ``n`` tokens at most; how many came. Turning them into text is left out."""
    assert isinstance(run.model, CausalLM)
    end, *also = ends_of(run.generation, run.tokenizer)
    new = generate(
        run.model,
        prompts,
        sampling=Sampling(temperature=0.0),
        eos_id=end,
        also=also,
        max_new_tokens=n,
        max_len=run.config.max_len,
        cache=run.generation.cache,
    )
    return sum(1 for _ in new)

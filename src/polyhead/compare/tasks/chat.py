"""Models that converse, compared: what the assistant says in the same conversations."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from polyhead.analysis.recovered import Recovered
from polyhead.compare.measure import counted
from polyhead.compare.significance import Floats
from polyhead.compare.tasks import recovering
from polyhead.compare.tasks.base import COMPARED, Found, Piece, Words
from polyhead.compare.tasks.language import piece
from polyhead.data.conversation_store import ConversationStore
from polyhead.data.rows import Ints, Rows
from polyhead.models import CausalLM
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.chat import Chat, store_of


@COMPARED.register("chat")
class Chats:
    """A unit is a conversation."""

    measures = recovering.MEASURES
    words = Words("conversations", "of a forward pass, for each token that the assistant says")

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    def tokens_per_step(self, task: Chat) -> float:
        """Those that the assistant says."""
        return counted(task)

    def typical(self, task: Chat) -> Piece:
        """A validation batch of the median length."""
        batches = (batch for _, batch in numbered(task, task.valid))
        found: Rows = recovering.middling(batches, lambda batch: batch.tokens.size(1))
        return piece(found)

    def pieces(self, task: Chat) -> Iterator[Piece]:
        """The validation conversations."""
        return (piece(batch) for _, batch in numbered(task, task.valid))

    def quality(self, run: Run, recipe: Recipe, task: Chat) -> tuple[Found, Found]:
        """Loss of the validation conversations, accuracy of the test ones."""
        model = run.model
        assert isinstance(model, CausalLM)

        def read(batch: Rows) -> Tensor:
            here = beside(model, batch)
            return model.features(here.tokens, here.pos)

        def told(store: ConversationStore) -> list[Recovered]:
            return recovering.by_unit(numbered(task, store), read, model.head)

        test = told(store_of(recipe, "test", run.tokenizer)) if recipe.data.test else None
        return recovering.quality(told(task.valid), test)

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """Conversation by conversation."""
        return recovering.statistics(kept)

    def decode_speed(self, run: Run, recipe: Recipe) -> None:
        """What it shall say is given."""

    def memory(self, run: Run) -> None:
        """There is nothing but its own output."""


def numbered(task: Chat, store: ConversationStore) -> Iterator[tuple[Ints, Rows]]:
    """Conversations by their numbers."""
    return ((rows, store.batch(rows, task.pad_id)) for rows in task.batches(store))

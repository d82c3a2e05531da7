"""Compare chat models: how well they predict the assistant's tokens in the same conversations."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.compare.tasks.base import COMPARED_TASKS, PageWords
from polyhead.compare.tasks.language import make_lm_batch
from polyhead.compare.tasks.recovering import ComparedTokenPrediction
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.stores.arrays import IdArray
from polyhead.data.stores.conversation_store import ConversationStore
from polyhead.train.tasks.causal_lm_common import causal_lm_features
from polyhead.train.tasks.chat import ChatTask, open_conversation_store


@COMPARED_TASKS.register("chat")
def compare_chat() -> ComparedTokenPrediction:
    """Compare chat models; a unit is a conversation."""
    return ComparedTokenPrediction(
        page_words=PageWords(
            "conversations", "of a forward pass, for each token that the assistant says", has_fixed_units=True
        ),
        number_batches=number_batches,
        features=causal_lm_features,
        make_batch=make_lm_batch,
        open_store=open_conversation_store,
    )


def number_batches(task: ChatTask, store: ConversationStore) -> Iterator[tuple[IdArray, TokenWindows]]:
    """Batches of conversations with their numbers."""
    return ((rows, store.collate(rows, task.pad_id)) for rows in task.make_sampler(store).epoch_batches())

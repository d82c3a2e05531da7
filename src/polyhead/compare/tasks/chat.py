"""Models that converse, compared: what the assistant says in the same conversations."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.compare.tasks.base import COMPARED, Words
from polyhead.compare.tasks.language import piece
from polyhead.compare.tasks.recovering import Recovering
from polyhead.data.arrays import Ints
from polyhead.data.conversation_store import ConversationStore
from polyhead.data.rows import Rows
from polyhead.train.tasks.chat import Chat, store_of
from polyhead.train.tasks.next_token import features


@COMPARED.register("chat")
def chats() -> Recovering:
    """A unit is a conversation."""
    return Recovering(
        words=Words("conversations", "of a forward pass, for each token that the assistant says", given=True),
        numbered=numbered,
        features=features,
        piece=piece,
        store_of=store_of,
    )


def numbered(task: Chat, store: ConversationStore) -> Iterator[tuple[Ints, Rows]]:
    """Conversations by their numbers."""
    return ((rows, store.batch(rows, task.pad_id)) for rows in task.by_length(store).plan())

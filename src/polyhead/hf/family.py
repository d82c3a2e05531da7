"""What a family of checkpoints is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.hf import keys
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key
from polyhead.hf.table import Row
from polyhead.registry import Choice, Registry
from polyhead.text.tokenizer import Tokenizer

Made = Callable[[Mapping[str, str]], Tokenizer]  # the tokenizer in which tokens play these roles


class Family(NamedTuple):
    """Checkpoints of one ``model_type``: the keys of their config and the names of their weights, a table each, both ways.

    ``write`` need not look whether a config can be said in the family's words: what it wrote is read again, and where
    that differs, the part that differs stands in the way.
    """

    architectures: Mapping[str, str]  # our models -> the classes of the reference implementation
    keys: tuple[Key, ...]  # of config.json
    table: tuple[Row, ...]  # of weights
    prefix: str  # of all names but the head's; files of the bare model lack it
    buffers: str = "$^"  # names, as a regular expression, that old files hold and that say nothing
    tied: Mapping[str, str] = {}  # name -> the one it shares a tensor with, which some files hold under both
    own: Mapping[str, tuple[Row, ...]] = {}  # rows that one of our models alone has, beside the table
    renamed: Mapping[str, str] = {}  # how names in old files end -> how they end today
    specials: Mapping[str, str] = {}  # which token plays which role where no file of the tokenizer says
    vocabulary: Callable[[Path], Made] | None = None  # its tokenizer from files other than tokenizer.json
    # what files hold beside what is learned
    computed: Callable[[ModelConfig], Mapping[str, Tensor]] = lambda config: {}
    left: str = "$^"  # names of what was learned beside a model and is left behind, which is told
    older: str = ""  # what names in old files begin with in the place of ``prefix``

    def read(self, given: Given) -> Fields:
        """config.json -> fields of ModelConfig."""
        return keys.read(self.keys, given)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Fields of ModelConfig -> config.json."""
        return keys.write(self.keys, config)

    def rows(self, model: str) -> tuple[Row, ...]:
        """The table of one of our models; of a language model's encoder alone that without a head."""
        if model == "Embedder" and "CausalLM" in self.architectures:
            inner = [row for row in self.table if row.ours[0].split(".")[0] != "head"]
            return tuple(row._replace(ours=tuple(f"encoder.{name}" for name in row.ours)) for row in inner)
        return self.table + self.own.get(model, ())


FAMILY: Registry[Any] = Registry("model_type", "polyhead.hf")

EMBEDDING, HEAD = "embedding.token.weight", "head.weight"
LAYER = "stack.layers.{n}"
QKV = (f"{LAYER}.attn.q_proj", f"{LAYER}.attn.k_proj", f"{LAYER}.attn.v_proj")
FINAL_NORM = "stack.final_norm"

# activations by their published names; of those for one choice the first is written
PLAIN = {
    "gelu_new": Choice("gelu", tanh=True),
    "gelu_pytorch_tanh": Choice("gelu", tanh=True),
    "gelu_fast": Choice("gelu", tanh=True),
    "gelu": Choice("gelu", tanh=False),
    "relu": Choice("relu"),
    "silu": Choice("silu"),
    "swish": Choice("silu"),
    "tanh": Choice("tanh"),
}
GATED = {
    "silu": Choice("swiglu"),
    "swish": Choice("swiglu"),
    "gelu_pytorch_tanh": Choice("geglu", tanh=True),
    "gelu_new": Choice("geglu", tanh=True),
    "gelu": Choice("geglu", tanh=False),
    "relu": Choice("reglu"),
    "sigmoid": Choice("glu"),
}


def activation_of(choice: Choice, known: dict[str, Choice]) -> str:
    """The published name of a feed-forward's activation; where it has none, of one like it, or the first of all."""
    same = [name for name, other in known.items() if choice.name == other.name]
    exact = [name for name in same if choice.options.get("tanh") == known[name].options.get("tanh")]
    return (exact or same or list(known))[0]


def activation(theirs: str, default: str, known: dict[str, Choice] = PLAIN) -> Key:
    """The feed-forward, by the published name of its activation."""
    return Key(
        lambda given, fields: {"feed_forward": known[given.word(theirs, default, known)].written()},
        lambda config: {theirs: activation_of(config.feed_forward, known)},
    )


def head_activation(feed_forward: Choice) -> str:
    """That of the map below the scores of the vocabulary, where it is the one of the layers."""
    return "gelu_tanh" if feed_forward.options.get("tanh") else feed_forward.name

"""What the families of encoders have in common: their three models, and classes by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import HEAD, head_activation
from polyhead.hf.given import MAX_SIZE, Given
from polyhead.hf.keys import Fields, Key, fixed
from polyhead.hf.table import COPIED, Row, one
from polyhead.registry import Choice

ENCODER = "encoder"
EMBEDDING = f"{ENCODER}.embedding"
LAYER = f"{ENCODER}.stack.layers.{{n}}"
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # before 2019
POST_NORM = fixed(
    kind="encoder", attention="softmax", norm_first=False, embedding_norm=True, scale_embedding=False, init="normal"
)  # fmt: skip
SPECIALS = {
    "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]",
}  # fmt: skip


def named(stem: str) -> dict[str, str]:
    """Our three models of encoders and the classes of a family whose names begin so."""
    return {
        "MaskedLM": f"{stem}ForMaskedLM",
        "Classifier": f"{stem}ForSequenceClassification",
        "Embedder": f"{stem}Model",
    }


def model_of(
    given: Given, stem: str, head: str | None = None, trained: str = "MaskedLM", pair: str | None = None
) -> str:
    """Which of our models a file holds; where it does not say, the bare one, as AutoModel reads it.

    The one that a family was first trained as is read as ``trained``. BERT's has one more head, for whether a text follows
    another: what fills masks has it where the tensor ``pair`` is there, whatever it says. Some bare ones still say that
    they fill masks, as they began: those without the tensor ``head``.
    """
    known = {theirs: ours for ours, theirs in named(stem).items()} | {f"{stem}ForPreTraining": trained}
    names = given.names("architectures") or [f"{stem}Model"]
    if names[0] not in known:
        raise given.wrong("architectures", f"one of {', '.join(known)}")
    found = known[names[0]]
    if found == "MaskedLM" and head and not given.holds(head, True):
        return "Embedder"
    return "PairLM" if found == "MaskedLM" and pair and given.holds(pair, False) else found


def heads(
    stem: str,
    *,
    pooled: Mapping[str, Any],
    bare: Mapping[str, Any] | None = None,
    head: str | None = None,
    trained: str = "MaskedLM",
    pair: str | None = None,
) -> Key:
    """What stands on the encoder: ``pooled`` under the classes, ``bare`` where nothing else does; others as in ``model_of``."""

    def read(given: Given, fields: Fields) -> Fields:
        return top(given, model_of(given, stem, head, trained, pair), pooled=pooled, bare=bare)

    return Key(read, top_said)


def top(
    given: Given, model: str, *, pooled: Mapping[str, Any], bare: Mapping[str, Any] | None = None
) -> Fields:
    """Fields of what stands on the encoder in one of our models, as in ``heads``.

    A model that fills masks has no use for ``pooled``, but a classifier that begins with it has.
    """
    tied = given.flag("tie_word_embeddings", True)
    if model in ("MaskedLM", "PairLM"):
        scored = {"tie_embeddings": "all" if tied else "none", "head_bias": True}
        return scored | {"pooling": dict(pooled), "pairs": model == "PairLM"}
    if model == "Classifier":
        return {"labels": labels(given), "pooling": dict(pooled)}
    return {"head": False, "pooling": None if bare is None else dict(bare)}


def top_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``top``."""
    return {"tie_word_embeddings": config.tie_embeddings != "none", **labels_said(config)}


def untied(config: ModelConfig) -> bool:
    """Whether the head over the vocabulary has a matrix of its own."""
    return config.tie_embeddings in ("inputs", "none")


def scores(head: str) -> tuple[Row, ...]:
    """The rows of that head, whose bias has two names. Beside a matrix of its own they are two tensors, and the reference adds
    the second; before version 5 it wrote the first alone.
    """
    return (
        *one(f"{head}.bias", "head.bias"),
        *one(f"{head}.decoder.bias", "head.bias", step=COPIED, where=untied),
        *one(f"{head}.decoder.weight", HEAD),
    )


def ties(head: str, encoder: str) -> dict[str, str]:
    """Names of one tensor, which files may hold twice."""
    return {
        f"{head}.decoder.weight": f"{encoder}.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


def as_layers(given: Given, fields: Fields) -> Fields:
    """The map below the scores of the vocabulary has the activation of the layers."""
    return {"head_activation": head_activation(Choice.read(fields["feed_forward"]))}


def labels(given: Given) -> list[str]:
    """The classes in their order, from id2label; LABEL_0 and LABEL_1 are theirs where nothing is said.

    One alone is the name of a number, as rerankers give it.
    """
    given.passed("label2id", "sentence_transformers", "sbert_ce_default_activation_function")
    names = given.values.get("id2label")
    if names is None:
        names = {str(i): f"LABEL_{i}" for i in range(min(given.size("num_labels", 2), MAX_SIZE >> 8))}
    if not isinstance(names, dict) or not names or set(names) != {str(i) for i in range(len(names))}:
        raise given.wrong("id2label", 'an object of names with the keys "0", "1" and so on')
    found = [names[str(i)] for i in range(len(names))]
    if not all(isinstance(name, str) for name in found):
        raise given.wrong("id2label", "names of classes")
    kind = "single_label_classification"
    if given.values.get("problem_type") == "multi_label_classification":
        raise given.wrong("problem_type", f"{kind}: texts that have several classes at once are not built")
    given.word("problem_type", kind, ["regression", kind] if len(found) == 1 else [kind])
    return found


def labels_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``labels``."""
    if not config.labels:
        return {}
    return {
        "id2label": {str(i): name for i, name in enumerate(config.labels)},
        "label2id": {name: i for i, name in enumerate(config.labels)},
    }

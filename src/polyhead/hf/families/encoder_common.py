"""Shared parts of the encoder families: model classes, heads and class labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.config.model import (
    ANSWER_LABELS,
    QUESTION_ANSWERING,
    SINGLE_LABEL,
    TOKEN_LABELS,
    ModelConfig,
)
from polyhead.core.choice import Choice
from polyhead.hf.config_map import MAX_SIZE, ConfigField, ConfigReader, ModelFields, constant
from polyhead.hf.family import COPY, HEAD_WEIGHT, WeightRule, head_transform_name, linear, weight

_ENCODER = "encoder"
ENCODER_EMBEDDING = f"{_ENCODER}.embedding"
ENCODER_LAYER = f"{_ENCODER}.stack.layers.{{n}}"
LAYER_PARTS = (
    "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "attn_residual.norm", "ffn.up_proj",
    "ffn.down_proj", "ffn_residual.norm",
)  # fmt: skip
LEGACY_NORM_SUFFIXES = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
}  # before 2019
POST_NORM = constant(
    kind="encoder", attention="softmax", norm_first=False, embedding_norm=True, scale_embedding=False,
    init="normal"
)  # fmt: skip
BERT_SPECIAL_TOKENS = {
    "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}  # fmt: skip


# families whose token classifier is a linear map of the encoder's output
_LINEAR_TOKEN_HEADS = {
    "Bert", "DistilBert", "Albert", "Roberta", "XLMRoberta", "Camembert", "MPNet", "Electra", "DebertaV2",
}  # fmt: skip


def encoder_architectures(class_prefix: str) -> dict[str, str]:
    """Return our encoder models -> the classes of a family with that prefix."""
    token_heads = {
        "TokenClassifier": f"{class_prefix}ForTokenClassification",
        "QuestionAnswerer": f"{class_prefix}ForQuestionAnswering",
    }
    return {
        "MaskedLM": f"{class_prefix}ForMaskedLM",
        "Classifier": f"{class_prefix}ForSequenceClassification",
        **(token_heads if class_prefix in _LINEAR_TOKEN_HEADS else {}),
        "SentenceEncoder": f"{class_prefix}Model",
    }


def read_architecture(
    reader: ConfigReader,
    class_prefix: str,
    head_tensor: str | None = None,
    pretrained_as: str = "MaskedLM",
    pair_tensor: str | None = None,
) -> str:
    """Return which of our models a file holds. Without architectures it is the bare encoder, as in AutoModel.

    The class ForPreTraining is read as ``pretrained_as``. BERT's has one more head, next-sentence prediction:
    a masked language model has it if the tensor ``pair_tensor`` is present, whatever the config states. Some
    bare encoders still name the masked language model they were trained as: those without the tensor
    ``head_tensor``.
    """
    models_by_class = {
        hf_class: model_name for model_name, hf_class in encoder_architectures(class_prefix).items()
    } | {f"{class_prefix}ForPreTraining": pretrained_as}
    names = reader.get_strings("architectures") or [f"{class_prefix}Model"]
    if names[0] not in models_by_class:
        raise reader.value_error("architectures", f"one of {', '.join(models_by_class)}")
    model = models_by_class[names[0]]
    if model == "MaskedLM" and head_tensor and not reader.has_tensor(head_tensor, True):
        return "SentenceEncoder"
    return (
        "NSPModel" if model == "MaskedLM" and pair_tensor and reader.has_tensor(pair_tensor, False) else model
    )


def map_heads(
    class_prefix: str,
    *,
    classifier_pooling: Mapping[str, Any],
    base_pooling: Mapping[str, Any] | None = None,
    head_tensor: str | None = None,
    pretrained_as: str = "MaskedLM",
    pair_tensor: str | None = None,
) -> ConfigField:
    """Map the heads: ``classifier_pooling`` below the classifier, ``base_pooling`` of the bare encoder.

    The other arguments are those of ``read_architecture``.
    """

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        return read_heads(
            reader,
            read_architecture(reader, class_prefix, head_tensor, pretrained_as, pair_tensor),
            classifier_pooling=classifier_pooling,
            base_pooling=base_pooling,
        )

    return ConfigField(read, write_heads)


def read_heads(
    reader: ConfigReader,
    model: str,
    *,
    classifier_pooling: Mapping[str, Any],
    base_pooling: Mapping[str, Any] | None = None,
) -> ModelFields:
    """Return the fields of the heads of one of our models, as in ``map_heads``.

    A masked language model does not use ``classifier_pooling``; a classifier initialised from it does.
    """
    tied = reader.get_bool("tie_word_embeddings", True)
    if model in ("MaskedLM", "NSPModel"):
        head_fields = {"tie_embeddings": "all" if tied else "none", "lm_head_bias": True}
        return head_fields | {"pooling": dict(classifier_pooling), "nsp_head": model == "NSPModel"}
    if model == "Classifier":
        labels = read_labels(reader)
        problem_type = read_problem_type(reader, labels)
        return {"labels": labels, "problem_type": problem_type, "pooling": dict(classifier_pooling)}
    if model == "TokenClassifier":
        reader.ignore("problem_type")
        return {"labels": read_labels(reader), "problem_type": TOKEN_LABELS}
    if model == "QuestionAnswerer":
        reader.ignore("problem_type", "id2label", "label2id", "qa_dropout")
        return {"labels": [*ANSWER_LABELS], "problem_type": QUESTION_ANSWERING}
    return {"lm_head": False, "pooling": None if base_pooling is None else dict(base_pooling)}


def write_heads(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``read_heads``."""
    return {"tie_word_embeddings": config.tie_embeddings != "none", **write_labels(config)}


def post_norm_rules(block: str, *names: str, layer: str = ENCODER_LAYER) -> list[WeightRule]:
    """Return the rows of a post-norm layer: the names of ``LAYER_PARTS`` below ``block``, in this order."""
    pairs = zip(names, LAYER_PARTS, strict=True)
    return [row for name, part in pairs for row in linear(f"{block}.{name}", f"{layer}.{part}")]


def lm_head_rules(head: str) -> tuple[WeightRule, ...]:
    """Return the rows of the vocabulary head, whose bias has two names.

    With an untied matrix these are two tensors and transformers adds the second; before version 5 it wrote
    only the first.
    """
    return (
        *weight(f"{head}.bias", "head.bias"),
        *weight(
            f"{head}.decoder.bias",
            "head.bias",
            transform=COPY,
            condition=lambda config: config.tie_embeddings in ("inputs", "none"),
        ),
        *weight(f"{head}.decoder.weight", HEAD_WEIGHT),
    )


def tied_head_weights(head: str, encoder: str) -> dict[str, str]:
    """Map names to the tensor they share, which files may hold under both."""
    return {
        f"{head}.decoder.weight": f"{encoder}.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


def read_head_transform(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Give the transform of the head the activation of the layers."""
    return {"head_transform_activation": head_transform_name(Choice.from_config(fields["feed_forward"]))}


def read_labels(reader: ConfigReader) -> list[str]:
    """Return the class names in order, from id2label; by default LABEL_0 and LABEL_1.

    A single name is that of a score, as in rerankers.
    """
    reader.ignore("label2id", "sentence_transformers", "sbert_ce_default_activation_function")
    names = reader.values.get("id2label")
    if names is None:
        names = {str(i): f"LABEL_{i}" for i in range(min(reader.get_int("num_labels", 2), MAX_SIZE >> 8))}
    if not isinstance(names, dict) or not names or set(names) != {str(i) for i in range(len(names))}:
        raise reader.value_error("id2label", 'an object with the keys "0", "1", ... and label names')
    labels = [names[str(i)] for i in range(len(names))]
    if not all(isinstance(name, str) for name in labels):
        raise reader.value_error("id2label", "names of classes")
    return labels


def read_problem_type(reader: ConfigReader, labels: Sequence[str]) -> str:
    """Return what the classifier outputs; several numbers are not supported."""
    kinds = [SINGLE_LABEL, "multi_label_classification", *(["regression"] if len(labels) == 1 else [])]
    return reader.get_choice("problem_type", SINGLE_LABEL, kinds)


def write_labels(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``read_labels``."""
    if not config.labels or config.problem_type == QUESTION_ANSWERING:
        return {}
    is_default = config.problem_type in (SINGLE_LABEL, TOKEN_LABELS)
    return ({} if is_default else {"problem_type": config.problem_type}) | {
        "id2label": {str(i): name for i, name in enumerate(config.labels)},
        "label2id": {name: i for i, name in enumerate(config.labels)},
    }

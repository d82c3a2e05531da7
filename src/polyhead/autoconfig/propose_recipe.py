"""Propose a recipe: sizes from the amount of text, all other settings from the measured recipes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.autoconfig.column_roles import Keys
from polyhead.autoconfig.inspect_data import DataSummary
from polyhead.chat.apply_template import check_vocabulary
from polyhead.config import yaml_io
from polyhead.config.presets import PRESETS
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.registry import CHAT
from polyhead.run.run_directory import read_run_config
from polyhead.tokenizers.tokenizer import Tokenizer


class SizePreset(NamedTuple):
    """Model size and training length for training text up to ``max_bytes``."""

    max_bytes: float  # of training text
    d_model: int
    n_layers: int
    dropout: float
    vocab_size: int
    epochs: float


# as multi30k-en-de (4 MB), tatoeba-en-zh and the published base model
PAIR_SIZES = [
    SizePreset(1e6, 128, 2, 0.3, 2000, 60),
    SizePreset(1e7, 128, 4, 0.3, 8000, 40),
    SizePreset(1e8, 256, 4, 0.2, 12000, 10),
    SizePreset(1e9, 512, 6, 0.1, 24000, 5),
    SizePreset(math.inf, 512, 6, 0.1, 32000, 2),
]
# as tinyshakespeare (1 MB), wikitext-2 (11 MB) and, beyond, fewer passes over more text
TEXT_SIZES = [
    SizePreset(3e6, 128, 4, 0.1, 2000, 12),
    SizePreset(3e7, 256, 4, 0.2, 8000, 6),
    SizePreset(3e8, 384, 6, 0.1, 16000, 3),
    SizePreset(math.inf, 512, 8, 0.0, 32000, 1),
]
# as trec (0.3 MB), sst2 (3.5 MB) and agnews
LABELED_SIZES = [
    SizePreset(1e6, 128, 1, 0.2, 8000, 6),
    SizePreset(1e7, 128, 1, 0.3, 8000, 4),
    SizePreset(math.inf, 256, 1, 0.3, 16000, 2),
]
LEARNING_RATES = {128: 0.004, 256: 0.002, 384: 0.001, 512: 0.0007}  # of AdamW, by width


_BYTES_PER_TOKEN = 4  # approximate mean for all tokenizers
_Section = dict[str, Any]
_BERT: _Section = {
    "block": "transformer", "feed_forward": "gelu", "norm_first": False, "embedding_norm": True,
    "n_segments": 2,
}  # fmt: skip
_PORTABLE_PARTS: Mapping[str, Mapping[str, _Section]] = {
    "translation": {"hf": {"position": {"name": "sinusoidal", "layout": "halves"}}},  # Pegasus
    "masked-lm": {"hf": _BERT},
    **{
        task: {"hf": _BERT | {"pooling": "first"}, "ctranslate2": {"block": "transformer"}}
        for task in ("classification", "multi-label", "regression")
    },
    "token-classification": {"hf": _BERT},
    "question-answering": {"hf": _BERT},
}


_REASONS = {
    "data.valid_fraction": "held out for validation; your own files are better: valid: [...]",
    "model.d_model": "width",
    "train.steps": "updates",
    "train.max_tokens": "per batch, including padding",
    "init_from": "a pretrained model learns answers best",
}
_TITLES = {
    "translation": "A translation model",
    "language-model": "A language model",
    "masked-lm": "An encoder for masked language modelling",
    "classification": "A classifier",
    "multi-label": "A classifier with several labels per text",
    "regression": "A model of numbers",
    "token-classification": "A token classifier",
    "question-answering": "A question answerer",
    "chat": "A language model for conversations",
    "embedding": "A model of text embeddings",
    "dpo": "A language model of preferences",
    "kto": "A language model of preferences",
}
_ROW_NAMES = {
    "translation": "pairs", "embedding": "pairs", "chat": "conversations", "dpo": "answers", "kto": "answers",
    **dict.fromkeys(("classification", "multi-label", "regression", "token-classification"), "texts"),
    "question-answering": "questions",
}  # fmt: skip
_LENGTH_REASONS = {
    "translation": "tokens per side; nearly all are shorter, longer ones are skipped and counted",
    **dict.fromkeys(
        ("classification", "multi-label", "regression"),
        "tokens; nearly all are shorter, longer ones are truncated and counted",
    ),
    "embedding": "tokens; nearly all are shorter, longer ones are truncated and counted",
    "token-classification": "tokens; longer texts are read in windows that overlap",
    "question-answering": "tokens; longer contexts are read in windows that overlap",
    "chat": "tokens; longer ones lose their last answers",
    "dpo": "tokens of a prompt with its answer; longer ones are skipped and counted",
    "kto": "tokens of a prompt with its answer; longer ones are skipped and counted",
}


def propose_recipe(summary: DataSummary, given_keys: Keys | None = None, export_format: str = "") -> _Section:
    """Propose a recipe, as a tree, for inspected data.

    It is consistent with ``given_keys``, such as "train.steps". The model can be exported to the format
    ``export_format``, if given.
    """
    given_keys = given_keys or {}
    proposals = {
        "translation": (PAIR_SIZES, _propose_translation),
        "language-model": (TEXT_SIZES, _propose_language_model),
        "masked-lm": (TEXT_SIZES, _propose_masked_lm),
        "classification": (LABELED_SIZES, _propose_classification),
        "multi-label": (LABELED_SIZES, _propose_classification),
        "regression": (LABELED_SIZES, _propose_classification),
        "token-classification": (LABELED_SIZES, _propose_token_classification),
        "embedding": (LABELED_SIZES, _propose_embedding),
        "question-answering": (LABELED_SIZES, _propose_question_answering),
        # of the run that it starts from
        "chat": ([SizePreset(math.inf, 0, 0, 0.0, 0, 3)], _propose_chat),
        **dict.fromkeys(("dpo", "kto"), ([SizePreset(math.inf, 0, 0, 0.0, 0, 1)], _propose_preferences)),
    }
    sizes, propose = proposals[summary.task]
    size = next(size for size in sizes if summary.size <= size.max_bytes)
    width = _get_preset(given_keys).get("d_model", size.d_model)
    size = size._replace(d_model=int(_get_number(given_keys, "model.d_model", width)))
    tree = propose(summary, given_keys, size)
    if "model" in tree:
        tokenizer = {"kind": "bpe", "vocab_size": size.vocab_size}
        tree = {"data": tree.pop("data"), "tokenizer": tokenizer} | tree
    if "model" in tree:
        tree["model"] |= _PORTABLE_PARTS.get(summary.task, {}).get(export_format, {})
    if any(key.partition(".")[0] == "init_from" for key in given_keys):  # the run provides both
        tree = {key: value for key, value in tree.items() if key not in ("tokenizer", "model")}
    elif preset := _get_preset(given_keys):  # a preset is a complete model
        tree["model"] = {
            key: value for key, value in tree["model"].items() if key == "max_len" and key not in preset
        }
    order = ("train", "valid", "valid_fraction", "test")
    data = {key: summary.data[key] for key in order if key in summary.data} | tree.pop("data") | summary.data
    root = {"root": data.pop("root")} if "root" in data else {}
    task = {} if summary.task == "translation" else {"task": summary.task}
    return task | {"data": root | data} | tree


def render_recipe(tree: Keys, summary: DataSummary, name: str) -> str:
    """The recipe as YAML with comments, a title at the top; ``name`` is the name of its file."""
    entries = summary.data["train"]
    files = [name for entry in entries for name in ([entry] if isinstance(entry, str) else entry["files"])]
    names = list(dict.fromkeys(name.rpartition("/")[2] for name in files))
    file_list = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    title = tr(_TITLES[summary.task])
    title = tr("{title} of {count} classes", title=title, count=summary.labels) if summary.labels else title
    unit = _ROW_NAMES.get(summary.task, "documents")
    rows = (
        tr(f"{{count:,}} {unit if summary.rows > 1 else unit[:-1]}, ", count=summary.rows)
        if summary.is_complete
        else ""
    )
    size = f"{summary.size / 1e6:,.1f} MB" if summary.size >= 1e5 else f"{summary.size / 1e3:,.1f} kB"
    reasons = {
        key: reason for key, reason in _REASONS.items() if key != "init_from" or summary.task == "chat"
    }
    reasons |= {"data.max_len": _LENGTH_REASONS.get(summary.task, "tokens per row")}
    lines = [
        "# "
        + tr("{title}: {rows}{size} of text ({files}).", title=title, rows=rows, size=size, files=file_list),
        *(f"# {note}" for note in summary.notes),
        f"# polyhead estimate {shlex.quote(name)}      {tr('time and memory, before training')}",
        f"# polyhead train {shlex.quote(name)}",
    ]
    for key, value in tree.items():
        if not isinstance(value, dict) or not value or key == "task":
            lines.append(_format_line("", key, value, reasons.get(key)))
            continue
        lines.append(f"{key}:")
        lines += [
            _format_line("  ", inner, entry, reasons.get(f"{key}.{inner}")) for inner, entry in value.items()
        ]
    return "\n".join(lines) + "\n"


def _format_line(indent: str, key: str, value: Any, reason: str | None) -> str:
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        entries = [f"{indent}  - {yaml_io.dump_yaml_value(entry)}" for entry in value]
        return "\n".join([f"{indent}{key}:", *entries])
    line = f"{indent}{key}: {yaml_io.dump_yaml_value(value)}"
    return f"{line:<38}  # {tr(reason)}" if reason else line


def _propose_translation(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    batch = 2048 if size.d_model <= 128 else 4096
    return {
        "data": {"max_len": _max_len(summary)},
        "model": {
            **_model_section(size, 4 if size.d_model <= 128 else 8),
            "d_ff": (2 if size.d_model <= 128 else 4) * size.d_model,
            "position": "rope",
        },
        "train": _train_section(
            summary, given_keys, size, batch, _peak_lr(size), "inverse_sqrt", 1.0 / 8, cooldown=0.3
        )
        | {"label_smoothing": 0.1, "average_checkpoints": 5, "keep": 5},
        "generation": {"beam_size": 5, "length_penalty": 1.0},
    }


def _propose_language_model(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    return {
        "data": {"max_len": 256},
        "model": {
            **_model_section(size, max(1, size.d_model // 64)), "max_len": 256, "position": "rope",
                "norm": "rmsnorm",
            "feed_forward": "swiglu", "init": "normal", "scale_embedding": False,
        },
        "train": _train_section(summary, given_keys, size, 2048,
            _peak_lr(size) if _uses_adamw(given_keys) else 0.006, "cosine", 1.0 / 20, optimizer="muon"),
        "generation": {"temperature": 0.8, "top_p": 0.95},
    }  # fmt: skip


def _propose_masked_lm(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    return {
        "data": {"document_separator": "line", "max_len": 128},
        "model": {
            **_model_section(size, max(1, size.d_model // 64)), "max_len": 128, "position": "learned",
                "feed_forward": "gelu",
            "lm_head_bias": True, "init": "normal", "scale_embedding": False,
        },
        "train": _train_section(summary, given_keys, size, 2048, 0.001 if _uses_adamw(given_keys) else 0.004,
            "cosine", 1.0 / 20, optimizer="muon"),
    }  # fmt: skip


def _propose_classification(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    length = _max_len(summary)
    return {
        "data": {"max_len": length},
        "model": {
            "block": {"name": "gated_conv", "kernel": 5}, **_model_section(size, 4), "max_len": length,
                "position": "learned",
            "init": "normal", "scale_embedding": False, "pooling": "max",
        },
        "train": _train_section(summary, given_keys, size, 512 if summary.size < 1e6 else 2048, 0.001,
            "cosine", 1.0 / 20, optimizer="adamw"),
    }  # fmt: skip


def _propose_token_classification(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    """As a classifier, with attention, and without a pooling."""
    tree = _propose_classification(summary, given_keys, size)
    tree["model"] = {key: value for key, value in tree["model"].items() if key not in ("block", "pooling")}
    tree["model"] |= {"n_layers": 2, "position": "rope"}
    tree["train"] |= {"best_metric": "micro_f1"}
    return tree


def _propose_embedding(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    """With the parts of BERT, which sentence-transformers opens, and large batches of negatives."""
    tree = _propose_token_classification(summary, given_keys, size)
    tree["model"] |= _BERT | {"n_layers": 1, "position": "learned"}
    tree["train"] |= {"best_metric": "loss", "max_tokens": given_keys.get("train.max_tokens", 4096)}
    return tree


def _propose_question_answering(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    """As a token classifier of a question and its context."""
    tree = _propose_token_classification(summary, given_keys, size)
    tree["model"] |= {"n_segments": 2}
    tree["train"] |= {"best_metric": "f1"}
    return tree


def _propose_chat(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    train = _train_section(summary, given_keys, size, 2048, 2e-5, "cosine", 1.0 / 20, optimizer="adamw")
    chat, length = _chat_and_length(given_keys.get("init_from"))
    return {
        "init_from": "HuggingFaceTB/SmolLM2-135M",
        "data": {"max_len": length},
        "train": train,
        "generation": {"chat": chat, "temperature": 0.7, "top_p": 0.9},
    }


def _propose_preferences(summary: DataSummary, given_keys: Keys, size: SizePreset) -> _Section:
    tree = _propose_chat(summary, given_keys, size)
    tree["train"] |= {"lr": given_keys.get("train.lr", 1e-6), "best_metric": "accuracy"}
    return tree | {"init_from": "HuggingFaceTB/SmolLM2-135M-Instruct"}


def _chat_and_length(init_from: object) -> tuple[str, int]:
    """(chat format, maximum length); for a local run, those that it supports."""
    chat, length = "chatml", 512
    if not isinstance(init_from, str) or not (Path(init_from) / "config.json").is_file():
        return chat, length
    try:
        length = min(length, read_run_config(Path(init_from)).model.max_len)
    except UserError:  # a model of another toolkit
        return chat, length
    try:
        check_vocabulary(CHAT.build(Choice(chat)), Tokenizer.load(init_from))
    except UserError:  # the vocabulary lacks the special tokens
        return "plain", length
    return chat, length


def _get_preset(given_keys: Keys) -> _Section:
    """The model section of the preset in ``given_keys``; empty without one."""
    return PRESETS.get(str(given_keys.get("model.preset")), {})


def _get_number(given_keys: Keys, key: str, default: float) -> float:
    """A number of ``given_keys`` if it is set and in a plausible range, else ``default``."""
    value = given_keys.get(key)
    return value if isinstance(value, int | float) and 1e-3 < value < 1e12 else default


def _peak_lr(size: SizePreset) -> float:
    """The peak learning rate of AdamW for this width."""
    return LEARNING_RATES[min(LEARNING_RATES, key=lambda width: abs(width - size.d_model))]


def _uses_adamw(given_keys: Keys) -> bool:
    """Whether ``given_keys`` selects AdamW instead of Muon, which allows higher learning rates."""
    choice = given_keys.get("train.optimizer", given_keys.get("train.optimizer.name"))
    return choice is not None and Choice.from_config(choice).name == "adamw"


def _model_section(size: SizePreset, n_heads: int) -> _Section:
    return {
        "d_model": size.d_model, "n_layers": size.n_layers, "n_heads": n_heads, "norm_first": True,
        "dropout": size.dropout,
    }  # fmt: skip


def _train_section(
    summary: DataSummary,
    given_keys: Keys,
    size: SizePreset,
    max_tokens: int,
    lr: float,
    schedule: str,
    warmup: float,
    optimizer: str = "",
    **options: float,
) -> _Section:
    """The ``train`` section: steps from the number of epochs, and the intervals that depend on them."""
    tokens = summary.size / _BYTES_PER_TOKEN / (2 if summary.task == "translation" else 1)
    max_tokens = int(_get_number(given_keys, "train.max_tokens", max_tokens))
    passes = _get_number(given_keys, "train.epochs", 0)
    steps = _round_to_2_digits(
        max(1, passes * tokens / max_tokens) if passes else max(200, size.epochs * tokens / max_tokens)
    )
    steps = int(_get_number(given_keys, "train.steps", steps))
    optimizer_section = (
        {"optimizer": {"name": optimizer, "weight_decay": 0.1 if optimizer == "muon" else 0.01}}
        if optimizer
        else {}
    )
    interval = max(1, min(steps, max(50, _round_to_2_digits(steps / 20))))
    max_warmup = max(1.0, min(1000, steps / 2))
    return {
        **({} if passes else {"steps": steps}),
        "max_tokens": max_tokens,
        **optimizer_section,
        "lr": lr,
        "schedule": {
            "name": schedule,
            "warmup": _round_to_2_digits(min(max_warmup, max(20, warmup * steps))),
            **options,
        },
        "eval_every": interval,
        "save_every": interval,
    }


def _max_len(summary: DataSummary) -> int:
    """Maximum length in tokens that covers nearly every text, a power of 2."""
    return min(512, max(32, 2 ** math.ceil(math.log2(1.5 * summary.usual_length / _BYTES_PER_TOKEN + 2))))


def _round_to_2_digits(number: float) -> int:
    """Round to two significant digits."""
    digits = max(0, int(math.log10(max(1, number))) - 1)
    return round(number / 10**digits) * 10**digits

"""A recipe to begin with: sizes by how much text there is, the rest as in the recipes that were measured."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyhead import document
from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.presets import PRESETS
from polyhead.registry import CHAT, Choice
from polyhead.run_files import read_config
from polyhead.starter.look import Look
from polyhead.starter.portable import portable
from polyhead.starter.sizes import LABELLED, PAIRS, PLAIN, RATES, Size
from polyhead.text.chat.tokens import check_fits
from polyhead.text.tokenizer import Tokenizer

TOKEN = 4  # bytes, about, of a token of any of the tokenizers
Section = dict[str, Any]


REASONS = {
    "data.valid_share": "held out to measure on; files of your own are better: valid: [...]",
    "model.d_model": "width",
    "train.steps": "updates",
    "train.max_tokens": "of a batch, padding counted",
    "start": "answers are learned best by a model that can write already",
}
TITLES = {
    "translation": "A translator",
    "language-model": "A language model",
    "masked-lm": "An encoder that learns to fill in what is hidden",
    "classification": "A classifier",
    "chat": "A language model that learns to answer",
}
ROWS = {"translation": "pairs", "classification": "texts", "chat": "conversations"}
LENGTHS = {
    "translation": "tokens a side; more than nearly all have, and longer ones are skipped and counted",
    "classification": "tokens; more than nearly all have, and longer ones are cut and counted",
    "chat": "tokens; of longer ones the last answers are left out",
}


def propose(look: Look, given: Mapping[str, Any] | None = None, target: str = "") -> dict[str, Any]:
    """The tree of a recipe for what was found, which fits the keys that are ``given`` already, "train.steps".

    Its model can be exported to the format ``target``, if one is wanted.
    """
    given = given or {}
    part = {
        "translation": _translation, "language-model": _language, "masked-lm": _masked, "classification": _classification,
        "chat": _chat,
    }  # fmt: skip
    of: Callable[[Look, Mapping[str, Any]], dict[str, Any]] = part[look.task]
    tree = of(look, given)
    if "model" in tree:
        tree["model"] = portable(look.task, tree["model"], target)
    if any(key.partition(".")[0] == "start" for key in given):  # which brings both
        tree = {key: value for key, value in tree.items() if key not in ("tokenizer", "model")}
    elif preset := _preset(given):  # which is a whole model
        tree["model"] = {
            key: value for key, value in tree["model"].items() if key == "max_len" and key not in preset
        }
    order = ("train", "valid", "valid_share", "test")
    data = {key: look.data[key] for key in order if key in look.data} | tree.pop("data") | look.data
    root = {"root": data.pop("root")} if "root" in data else {}
    task = {} if look.task == "translation" else {"task": look.task}
    return task | {"data": root | data} | tree


def written(tree: Mapping[str, Any], look: Look, name: str) -> str:
    """The recipe as people write it, what it is for above it; ``name`` is the file's."""
    names = [one.rpartition("/")[2] for one in look.data["train"]]
    few = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    title = tr(TITLES[look.task])
    title = tr("{title} of {count} classes", title=title, count=look.labels) if look.labels else title
    what = ROWS.get(look.task, "documents")
    rows = tr(f"{{count:,}} {what if look.rows > 1 else what[:-1]}, ", count=look.rows) if look.whole else ""
    size = f"{look.size / 1e6:,.1f} MB" if look.size >= 1e5 else f"{look.size / 1e3:,.1f} kB"
    reasons = {key: reason for key, reason in REASONS.items() if key != "start" or look.task == "chat"}
    reasons |= {"data.max_len": LENGTHS.get(look.task, "tokens of a row")}
    lines = [
        "# " + tr("{title}: {rows}{size} of text ({files}).", title=title, rows=rows, size=size, files=few),
        *(f"# {note}" for note in look.notes),
        f"# polyhead plan {shlex.quote(name)}      {tr('what it costs in time and memory, before it is trained')}",
        f"# polyhead train {shlex.quote(name)}",
    ]
    for key, value in tree.items():
        if not isinstance(value, dict) or not value or key == "task":
            lines.append(_line("", key, value, reasons.get(key)))
            continue
        lines.append(f"{key}:")
        lines += [_line("  ", inner, one, reasons.get(f"{key}.{inner}")) for inner, one in value.items()]
    return "\n".join(lines) + "\n"


def _line(indent: str, key: str, value: Any, reason: str | None) -> str:
    line = f"{indent}{key}: {document.write_value(value)}"
    return f"{line:<38}  # {tr(reason)}" if reason else line


def _translation(look: Look, given: Mapping[str, Any]) -> dict[str, Any]:
    size = _size(PAIRS, look, given)
    batch = 2048 if size.d_model <= 128 else 4096
    return {
        "data": {"max_len": _length(look)},
        "tokenizer": {"kind": "bpe", "vocab_size": size.vocab_size},
        "model": {
            **_model(size, 4 if size.d_model <= 128 else 8),
            "d_ff": (2 if size.d_model <= 128 else 4) * size.d_model,
            "position": "rope",
        },
        "train": _train(look, given, size, batch, _rate(size), "inverse_sqrt", 1.0 / 8, cooldown=0.3)
        | {"label_smoothing": 0.1, "average": 5, "keep": 5},
        "generation": {"beam_size": 5, "length_penalty": 1.0},
    }


def _language(look: Look, given: Mapping[str, Any]) -> dict[str, Any]:
    size = _size(PLAIN, look, given)
    return {
        "data": {"max_len": 256},
        "tokenizer": {"kind": "bpe", "vocab_size": size.vocab_size},
        "model": {
            **_model(size, max(1, size.d_model // 64)), "max_len": 256, "position": "rope", "norm": "rmsnorm",
            "feed_forward": "swiglu", "init": "normal", "scale_embedding": False,
        },
        "train": _train(look, given, size, 2048, _rate(size) if _adamw(given) else 0.006, "cosine", 1.0 / 20, optimizer="muon"),
        "generation": {"temperature": 0.8, "top_p": 0.95},
    }  # fmt: skip


def _masked(look: Look, given: Mapping[str, Any]) -> dict[str, Any]:
    size = _size(PLAIN, look, given)
    return {
        "data": {"documents": "line", "max_len": 128},
        "tokenizer": {"kind": "bpe", "vocab_size": size.vocab_size},
        "model": {
            **_model(size, max(1, size.d_model // 64)), "max_len": 128, "position": "learned", "feed_forward": "gelu",
            "head_bias": True, "init": "normal", "scale_embedding": False,
        },
        "train": _train(look, given, size, 2048, 0.001 if _adamw(given) else 0.004, "cosine", 1.0 / 20, optimizer="muon"),
    }  # fmt: skip


def _classification(look: Look, given: Mapping[str, Any]) -> dict[str, Any]:
    size, length = _size(LABELLED, look, given), _length(look)
    return {
        "data": {"max_len": length},
        "tokenizer": {"kind": "bpe", "vocab_size": size.vocab_size},
        "model": {
            "block": {"name": "conv", "kernel": 5}, **_model(size, 4), "max_len": length, "position": "learned",
            "init": "normal", "scale_embedding": False, "pooling": "max",
        },
        "train": _train(look, given, size, 512 if look.size < 1e6 else 2048, 0.001, "cosine", 1.0 / 20, optimizer="adamw"),
    }  # fmt: skip


def _chat(look: Look, given: Mapping[str, Any]) -> dict[str, Any]:
    few = Size(math.inf, 0, 0, 0.0, 0, 3)
    train = _train(look, given, few, 2048, 2e-5, "cosine", 1.0 / 20, optimizer="adamw")
    chat, length = _of_start(given.get("start"))
    return {
        "start": "HuggingFaceTB/SmolLM2-135M",
        "data": {"max_len": length},
        "train": train,
        "generation": {"chat": chat, "temperature": 0.7, "top_p": 0.9},
    }


def _of_start(start: object) -> tuple[str, int]:
    """A chat format and a length; of a run that is here those that it can write and read."""
    chat, length = "chatml", 512
    if not isinstance(start, str) or not (Path(start) / "config.json").is_file():
        return chat, length
    try:
        length = min(length, read_config(Path(start)).max_len)
    except UserError:  # a model of others
        return chat, length
    try:
        check_fits(CHAT.build(Choice(chat)), Tokenizer.load(start))
    except UserError:  # it has not the tokens
        return "plain", length
    return chat, length


def _size(sizes: list[Size], look: Look, given: Mapping[str, Any]) -> Size:
    """What suits so much text, in a width that is given."""
    size = next(size for size in sizes if look.size <= size.most)
    return size._replace(
        d_model=int(_number(given, "model.d_model", _preset(given).get("d_model", size.d_model)))
    )


def _preset(given: Mapping[str, Any]) -> Section:
    """What a preset says of the model, where one is given."""
    return PRESETS.get(str(given.get("model.preset")), {})


def _number(given: Mapping[str, Any], key: str, other: float) -> float:
    """A number that is given, if it is one that can be reckoned with."""
    value = given.get(key)
    return value if isinstance(value, int | float) and 1e-3 < value < 1e12 else other


def _rate(size: Size) -> float:
    """The peak rate of AdamW for this width."""
    return RATES[min(RATES, key=lambda width: abs(width - size.d_model))]


def _adamw(given: Mapping[str, Any]) -> bool:
    """Whether AdamW is given in place of Muon, which bears higher rates."""
    choice = given.get("train.optimizer", given.get("train.optimizer.name"))
    return choice is not None and Choice.read(choice).name == "adamw"


def _model(size: Size, n_heads: int) -> Section:
    return {
        "d_model": size.d_model, "n_layers": size.n_layers, "n_heads": n_heads, "norm_first": True, "dropout": size.dropout,
    }  # fmt: skip


def _train(
    look: Look,
    given: Mapping[str, Any],
    size: Size,
    max_tokens: int,
    lr: float,
    schedule: str,
    warmup: float,
    optimizer: str = "",
    **options: float,
) -> Section:
    """So many passes over the text, and the moments that follow from them."""
    tokens = look.size / TOKEN / (2 if look.task == "translation" else 1)
    max_tokens = int(_number(given, "train.max_tokens", max_tokens))
    passes = _number(given, "train.epochs", 0)
    steps = _round(
        max(1, passes * tokens / max_tokens) if passes else max(200, size.passes * tokens / max_tokens)
    )
    steps = int(_number(given, "train.steps", steps))
    chosen = (
        {"optimizer": {"name": optimizer, "weight_decay": 0.1 if optimizer == "muon" else 0.01}}
        if optimizer
        else {}
    )
    every = max(1, min(steps, max(50, _round(steps / 20))))
    most = max(1.0, min(1000, steps / 2))
    return {
        **({} if passes else {"steps": steps}),
        "max_tokens": max_tokens,
        **chosen,
        "lr": lr,
        "schedule": {"name": schedule, "warmup": _round(min(most, max(20, warmup * steps))), **options},
        "eval_every": every,
        "save_every": every,
    }


def _length(look: Look) -> int:
    """Tokens of nearly every text, a power of 2."""
    return min(512, max(32, 2 ** math.ceil(math.log2(1.5 * look.long() / TOKEN + 2))))


def _round(number: float) -> int:
    """Two digits that count."""
    digits = max(0, int(math.log10(max(1, number))) - 1)
    return round(number / 10**digits) * 10**digits

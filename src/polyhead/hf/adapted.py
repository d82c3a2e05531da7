"""A checkpoint as it is with an adapter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.hf.adapters import Changed, Low
from polyhead.hf.family import HEAD, Family
from polyhead.hf.files import Entry
from polyhead.hf.table import FUSED_TRANSPOSED, TRANSPOSED

Stored = Entry | Changed


def adapted(
    family: Family,
    config: ModelConfig,
    stored: Mapping[str, Entry],
    whole: Mapping[str, Entry],
    added: Mapping[str, Low],
    where: Path,
) -> tuple[ModelConfig, dict[str, Stored]]:
    """Config and weights, with ``whole`` ones in the place of the checkpoint's and what is ``added`` to some.

    To PEFT an embedding and the head that is tied to it are two: one that is changed by itself leaves the other as it was.
    The vocabulary has as many tokens as the embedding.
    """
    tied = _tied(family, config, stored, {*whole, *added})
    # where PEFT replaces the tensor itself: below what is added, or with more rows
    base = {
        of: whole[of] if of in whole and (of in added or whole[of].shape != stored[of].shape) else stored[of]
        for of in tied.values()
    }
    copies = {name: base[of] for name, of in tied.items()}
    if homeless := sorted(whole.keys() - stored.keys() - copies.keys()):
        raise UserError(f"{where} holds {homeless[0]}, for which the checkpoint has no place")
    found = changed(family, {**stored, **copies, **whole}, added, where)
    loose = config.model_copy(
        update={"tie_embeddings": "inputs" if config.kind == "encoder-decoder" else "none"}
    )
    places = {row.theirs for row in family.table if row.where(loose)}
    heads = {row.theirs for row in family.table if row.ours == (HEAD,)}
    for name, of in tied.items():
        alike = found[name].shape == found[of].shape
        # what is whole may be in fp32 beside a checkpoint in bf16
        if alike and torch.allclose(found[name].tensor().float(), found[of].tensor().float()):
            del found[name]
        elif name in heads and of in places:
            config = loose
        else:
            raise UserError(
                f"{where} changes one of {name} and {of} by itself, and in the checkpoint they are one"
            )
    rows = max((sum(found[of].shape[:1]) for of in {*family.tied.values()} & whole.keys()), default=0)
    return config.model_copy(update={"vocab_size": rows or config.vocab_size}), found


def with_classes(
    family: Family, given: dict[str, Any], stored: Mapping[str, Entry], whole: Mapping[str, Entry]
) -> tuple[dict[str, Any], dict[str, Entry]]:
    """config.json and weights: those of a classifier where an adapter brings what tells classes.

    What else stands on the checkpoint's encoder is left out. Classes that nobody names are numbered.
    """
    table = family.rows("Classifier") if "Classifier" in family.architectures else ()
    head = next((row.theirs for row in table if row.ours == ("classifier.weight",)), "")
    if head not in whole:
        return given, dict(stored)
    n, names = whole[head].shape[0], given.get("id2label")
    named = names if isinstance(names, dict) and len(names) == n else None
    classes = {"architectures": [family.architectures["Classifier"]], "num_labels": n, "id2label": named}
    new = {name: entry for name, entry in whole.items() if not name.startswith(family.prefix)}
    return given | classes, {
        name: entry for name, entry in stored.items() if name.startswith(family.prefix)
    } | new


def changed(
    family: Family, found: Mapping[str, Entry], added: Mapping[str, Low], where: Path
) -> dict[str, Stored]:
    """The weights of a checkpoint, as they are with what is added."""
    turned = {row.theirs for row in family.table if row.step in (TRANSPOSED, FUSED_TRANSPOSED)}
    made: dict[str, Stored] = dict(found)
    for name, low in added.items():
        if re.sub(r"\b\d+\b", "{n}", name) in turned:
            low = low._replace(turned=True)
        if name not in found:
            raise UserError(f"{where} changes {name}, which the checkpoint does not hold by itself")
        if found[name].shape != low.shape:
            raise UserError(
                f"{where} changes {name} by {list(low.shape)}, and it is {list(found[name].shape)}"
            )
        made[name] = Changed(found[name], low)
    return made


def _tied(
    family: Family, config: ModelConfig, stored: Mapping[str, Entry], touched: set[str]
) -> dict[str, str]:
    """Names that stand for the tensor of another one in this model, where either is touched."""
    if config.tie_embeddings != "all" or not config.head or config.labels:
        return {}
    return {
        name: of
        for name, of in family.tied.items()
        if name.endswith(".weight") and of in stored and touched & {name, of}
    }

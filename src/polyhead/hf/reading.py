"""A checkpoint directory to a model of ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.errors import UserError, at, explain, show, unknown
from polyhead.generation_section import GenerationConfig
from polyhead.hf.adapted import Stored, adapted, with_classes
from polyhead.hf.adapters import Adapter, is_adapter, open_adapter
from polyhead.hf.chat import chat_of
from polyhead.hf.family import FAMILY, HEAD, Family
from polyhead.hf.files import DTYPES, entries, inside, read_json
from polyhead.hf.generation import drawing, searching
from polyhead.hf.given import Given
from polyhead.hf.sentences import dense_of, dense_rows, embedding_of, length_of, rating_of
from polyhead.hf.table import joined, pieces, rows
from polyhead.hf.tokens import open_tokenizer, other_ends
from polyhead.models import Embedder
from polyhead.models.build import Model, model_class
from polyhead.nn.weights import settled, weights
from polyhead.text.files import FILE as TOKENIZER
from polyhead.text.tokenizer import Tokenizer
from polyhead.undrawn import Undrawn

T = TypeVar("T")

log = logging.getLogger(__name__)

SHOWN = 8  # names of one kind that an error lists
# models that see pictures, of families whose models of text alone are read
SEEING = {
    "gemma3": "This Gemma 3 sees pictures; those of text alone ('gemma3_text'), such as google/gemma-3-1b-it, are read",
}


class Opened(NamedTuple):
    """What a checkpoint holds."""

    model: Model
    tokenizer: Tokenizer
    generation: GenerationConfig
    family: str


def model_type(directory: Path) -> str | None:
    """What config.json says that the model is; None where it does not say, or cannot be read."""
    try:
        kind = (read_json(directory, "config.json") or {}).get("model_type")
    except UserError:
        return None
    return kind if isinstance(kind, str) else None


def open_checkpoint(directory: Path) -> Opened:
    """Model, tokenizer and settings of decoding; every way in which they cannot be read is a UserError of one line.

    A directory of an adapter stands for the checkpoint that it changes, with a tokenizer of its own where it has one.
    The model is that of ``mapped_model``.
    """
    adapter = open_adapter(directory) if is_adapter(directory) else None
    own, directory = directory, adapter.base if adapter else directory
    speaks = own if inside(own, TOKENIZER) else directory
    config, generation = _config(directory), read_json(directory, "generation_config.json")
    where = directory / ("config.json" if generation is None else "generation_config.json")
    model, family = mapped_model(directory, adapter), config["model_type"]
    tokenizer = open_tokenizer(speaks, config, generation, model.config.vocab_size)
    ends = other_ends(tokenizer, config, generation)
    generation = config if generation is None else generation  # as before there were two files
    if model.config.kind == "encoder-decoder":
        searched = searching(generation, tokenizer, where).model_copy(update={"ends": ends})
        return Opened(model, tokenizer, searched, family)
    vectors = embedding_of(directory, mapped=bool(model.config.dense))
    if vectors or model.config.kind == "encoder":
        vectors |= {"max_text_len": length_of(directory, tokenizer, model.config.max_len)}
    if len(model.config.labels) == 1:
        vectors |= rating_of(directory, config)
    if model.config.kind == "encoder":
        return Opened(model, tokenizer, GenerationConfig(**vectors), family)
    rest = {"ends": ends, "chat": chat_of(speaks), **vectors}
    return Opened(model, tokenizer, drawing(generation, where).model_copy(update=rest), family)


def open_model(directory: Path, adapter: Adapter | None = None) -> Model:
    """The model alone, fp32 whatever the files have."""
    return settled(mapped_model(directory, adapter))


def mapped_model(directory: Path, adapter: Adapter | None = None) -> Model:
    """The model alone, with weights that are what the files have, and still lie there: they take no memory, and must stay as they are.

    Those that an adapter changes are in memory, and so are those whose rows a family has in another order.
    """
    given = _config(directory)
    where = directory / "config.json"
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILY.names():
        if isinstance(kind, str) and kind in SEEING:
            raise UserError(f"{where}: model_type is {kind!r}, which is not built. {SEEING[kind]}")
        with at(str(where)):
            raise unknown("model_type", kind, FAMILY.names())
    family: Family = FAMILY.get(kind)
    stored = _named(family, entries(directory))
    whole = _named(family, adapter.whole) if adapter else {}
    given, stored = with_classes(family, given, stored, whole)
    found: dict[str, Stored] = {**stored}
    config = read_config(family, Given(given, where, found.keys()))
    if adapter:
        added = _named(family, adapter.added)
        config, found = adapted(family, config, stored, whole, added, adapter.directory)
    layers = 1 if config.share_layers else max(config.n_layers, config.decoder_layers)
    if layers > len(found):
        raise UserError(f"{where} speaks of {layers} layers, and the files hold {len(found)} tensors")
    if _headless(family, config, given, found):
        config = config.model_copy(update={"kind": "encoder", "head": False, "causal": True})
    if model_class(config) is Embedder:
        maps, held = dense_of(directory, config.d_model)
        config, found = config.model_copy(update={"dense": tuple(maps)}), {**found, **held}
    table = (*family.rows(model_class(config).__name__), *dense_rows(config))
    with torch.device("meta"), Undrawn():
        ours = weights(model_class(config)(config))
    wanted = joined(table, ours, config)
    found = _with_copies(family, wanted, found)
    if left := [name for name in sorted(found) if name not in wanted and re.fullmatch(family.left, name)]:
        log.warning("%s: left behind, since this model has no place for them: %s", directory, _listed(left))
    found = {
        name: value
        for name, value in found.items()
        if name in wanted or not re.fullmatch(f"{family.buffers}|{family.left}", name)
    }
    found = _without_copies(family, wanted, found, directory)
    _fit(found, wanted, directory, _taken(family, config, given))
    with torch.device("cpu"), Undrawn():  # where the files are read to, whatever device is the default
        model = model_class(config)(config)
    ours = weights(model)
    for row in rows(table, ours, config):
        for name, tensor in pieces(row, found[row.theirs].tensor(), ours):
            ours[name].data = tensor.expand_as(ours[name])
    return model.eval()


def _headless(family: Family, config: ModelConfig, given: Mapping[str, Any], found: Collection[str]) -> bool:
    """Whether the files hold a language model without a head, and say so."""
    own = {HEAD: config.tie_embeddings == "none", "head.bias": config.head_bias}
    wanted = {row.theirs for row in family.table if own.get(row.ours[0])}
    whole = {family.architectures.get("CausalLM")}
    bare = not whole & {*(given.get("architectures") or whole)}
    said = config.kind == "decoder" and config.d_embedding is None and bare
    return said and bool(wanted) and not wanted & set(found)


def read_config(family: Family, given: Given) -> ModelConfig:
    """config.json in our words."""
    fields = family.read(given)
    given.finish()
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise explain(error, ModelConfig, str(given.where)) from None
    except UserError as error:
        raise UserError(f"{given.where}: {error}") from None


def _config(directory: Path) -> dict[str, Any]:
    given = read_json(directory, "config.json")
    if given is None:
        raise UserError(f"{directory} has no config.json")
    return given


def _named(family: Family, found: Mapping[str, T]) -> dict[str, T]:
    """What was found by the names that the whole model has today."""
    table = [row for model in family.architectures for row in family.rows(model)]
    outside = {row.theirs for row in table if not row.theirs.startswith(family.prefix)}
    found = {name.removeprefix(family.older): entry for name, entry in found.items()}
    bare = not any(name.startswith(family.prefix) for name in found)
    named = {}
    for stored, entry in found.items():
        today = next(
            (stored.removesuffix(old) + new for old, new in family.renamed.items() if stored.endswith(old)),
            stored,
        )
        name = stored if today in found else today
        named[family.prefix + name if bare and name not in outside else name] = entry
    return named


def _with_copies(family: Family, wanted: Mapping[str, Tensor], found: dict[str, Stored]) -> dict[str, Stored]:
    """Some files hold once what is read under two names though the head is its own: embeddings of both sides, a bias."""
    heads = {row.theirs for row in family.table if row.ours == (HEAD,)}
    copies = {
        name: found[of]
        for name, of in family.tied.items()
        if name in wanted.keys() - found.keys() - heads and of in found
    }
    return found | copies


def _without_copies(
    family: Family, wanted: Mapping[str, Tensor], found: dict[str, Stored], directory: Path
) -> dict[str, Stored]:
    """Some files hold a tied tensor under both of its names; then they must be equal."""
    copies = {
        name: of for name, of in family.tied.items() if name in found and name not in wanted and of in found
    }
    for name, of in copies.items():
        if not torch.equal(found[name].tensor(), found[of].tensor()):
            raise UserError(
                f"{directory}: {name} is not {of}, and config.json says that they are one; is tie_word_embeddings false?"
            )
    return {name: value for name, value in found.items() if name not in copies}


def _taken(family: Family, config: ModelConfig, given: Mapping[str, Any]) -> str:
    """Which class of the reference implementation the model is taken for, if the file names another or none."""
    taken = family.architectures.get(model_class(config).__name__, "a model without its head")
    named = given.get("architectures") or ["no architectures"]
    return "" if taken in named else f". It was read as {taken}; config.json names {_listed(map(str, named))}"


def _fit(found: Mapping[str, Stored], wanted: Mapping[str, Tensor], directory: Path, taken: str = "") -> None:
    """Refuse tensors that differ from those wanted, naming all that is missing, unused or of another shape or type."""
    shared = sorted(found.keys() & wanted.keys())
    shapes = [(name, found[name].shape, tuple(wanted[name].shape)) for name in shared]
    wrong = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unused": sorted(found.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {list(came)}, wanted {list(want)}" for name, came, want in shapes if came != want
        ],
        f"neither of {', '.join(DTYPES)}": [
            f"{name} {found[name].dtype}" for name in shared if found[name].dtype not in DTYPES
        ],
    }
    if any(wrong.values()):
        said = "; ".join(f"{what}: {_listed(names)}" for what, names in wrong.items() if names)
        raise UserError(f"{directory}: the weights do not fit config.json; {said}{taken}")


def _listed(names: Iterable[str]) -> str:
    names = [show(name)[1:-1] if len(name) > 200 else name for name in names]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more

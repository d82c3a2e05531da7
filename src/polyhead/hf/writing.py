"""A model of ours in the words of a published family."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.config import LayerParts, ModelConfig
from polyhead.errors import UserError, show, unknown
from polyhead.generate.settings import ends_of
from polyhead.generation_section import GenerationConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.files import WEIGHTS
from polyhead.hf.generation import decoding
from polyhead.hf.given import Given
from polyhead.hf.pattern import part
from polyhead.hf.reading import read_config
from polyhead.hf.sentences import dense_rows, modules, of_vectors, rating_said
from polyhead.hf.table import joined
from polyhead.models.build import Model, model_class
from polyhead.nn.pooling import biased
from polyhead.nn.weights import weights
from polyhead.registry import CHAT, POOLING, POSITION, Choice
from polyhead.text.chat.tokens import ends
from polyhead.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# what counts in training alone, is compared layer by layer, or stands in files of its own
PASSED = {"init", "dropout", "pattern", "dense"}
# parts of a decoder that reads an encoder -> what stands in for one that is not given
CROSSING = {
    "n_decoder_layers": "n_layers",
    "decoder_block": "block",
    "decoder_attention": "attention",
    "cross_attention": "attention",
}
LAYERED = LayerParts.model_fields  # what a pattern may change from layer to layer
# what a model of that class has no use for
OF_HEAD = {"head_activation", "head_bias", "scale_output", "logit_softcap", "tie_embeddings"}
UNREAD = {"Classifier": OF_HEAD | {"head"}, "Embedder": OF_HEAD, "MaskedLM": {"pooling"}}
# null if absent, left out if absent
IDS, MORE_IDS = (
    ("bos_token", "eos_token", "pad_token"),
    ("cls_token", "sep_token", "forced_bos_token"),
)
# of families that say the same those that most tools read
USUAL = ("gpt_neox", "llama", "mixtral", "roberta", "t5")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Published(NamedTuple):
    """The content of a checkpoint directory."""

    family: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, Tensor]
    beside: dict[str, Any]  # other files of JSON, by name
    maps: dict[str, dict[str, Tensor]]  # tensors of other files, by name


def published(
    model: Model,
    tokenizer: Tokenizer,
    generation: GenerationConfig,
    family: str | None = None,
    dtype: str = "fp32",
    origin: str | None = None,
) -> Published:
    """The model as the family has it, or the first that can, its ``origin`` before others; else a UserError names the part in the way."""
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    family = fitting(model.config, family, origin)
    chosen: Family = FAMILY.get(family)
    said, ids = described(model.config, family), token_ids(model.config, tokenizer)
    stops = {"eos_token_id": all_ends(generation, tokenizer)} if generation.chat or generation.ends else {}
    if wrong := ids_in_the_way(said, ids):
        raise UserError(f"this model is none of the family {family!r}: {'; '.join(wrong)}")
    table = (*chosen.rows(type(model).__name__), *dense_rows(model.config))
    tensors = {**joined(table, weights(model), model.config), **chosen.computed(model.config)}
    held = {name: tensor.detach().to(DTYPES[dtype]).contiguous() for name, tensor in tensors.items()}
    maps: dict[str, dict[str, Tensor]] = {}
    for name in [name for name in held if "/" in name]:
        place, _, own = name.rpartition("/")
        maps.setdefault(f"{place}/{WEIGHTS}", {})[own] = held.pop(name)
    bare = (
        chosen.prefix
        if model.config.kind == "encoder" and not (model.config.head or model.config.labels)
        else ""
    )
    # a language model is asked for vectors where it says how, most are not
    speaks = model.config.kind == "decoder" and of_vectors(generation) != of_vectors(GenerationConfig())
    return Published(
        family,
        said
        | rating_said(model.config, generation)
        | {"dtype": str(DTYPES[dtype]).removeprefix("torch.")}
        | ids,
        decoding(model.config, generation, tokenizer) | ids | stops,
        {name.removeprefix(bare): tensor for name, tensor in held.items()},
        modules(generation, model.config) if bare or speaks else {},
        maps,
    )


def all_ends(generation: GenerationConfig, tokenizer: Tokenizer) -> list[int]:
    """All tokens that end a text or an answer, the end of a text first."""
    answers = ends(CHAT.build(generation.chat), tokenizer) if generation.chat else ()
    return list(ends_of(generation, tokenizer.target, tokenizer.eos_id, *answers))


def token_ids(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, int | None]:
    """What config.json says of the ids of special tokens."""
    ids = {f"{role}_id": tokenizer.ids.get(role) for role in IDS}
    ids |= {f"{role}_id": tokenizer.ids[role] for role in MORE_IDS if role in tokenizer.ids}
    if config.kind == "encoder-decoder":
        ids["decoder_start_token_id"] = tokenizer.sides.start
    return ids


def ids_in_the_way(said: Mapping[str, Any], ids: Mapping[str, int | None]) -> list[str]:
    """One line for each id of a special token that the family's config fixes, and that is another here."""
    return [
        f"its {key} is {show(ids[key])}, there {show(said[key])}"
        for key in said.keys() & ids.keys()
        if said[key] != ids[key]
    ]


def fitting(config: ModelConfig, family: str | None = None, origin: str | None = None) -> str:
    """The name of a family that says exactly this config: the one that is wanted, or its ``origin``, or any."""
    name, obstacles = nearest_family(config, family, origin)
    if not obstacles:
        return name
    what = (
        "this model is none of that family"
        if family
        else f"no published family has these parts; the nearest is {name!r}"
    )
    raise UserError(f"{what}: {'; '.join(obstacles)}")


def nearest_family(
    config: ModelConfig, family: str | None = None, origin: str | None = None
) -> tuple[str, list[str]]:
    """The family that has most of a config, of those that have it all the first, and what it lacks: a line for each part."""
    if family is not None and family not in FAMILY.names():
        raise unknown("family", family, FAMILY.names())
    tried, unlike = {}, set()
    every = sorted(FAMILY.names(), key=lambda name: (name != origin, name not in USUAL))
    for name in [family] if family else every:
        try:
            tried[name] = in_the_way(config, name)
            if not tried[name]:
                return name, []
        except UserError as error:  # it has no such model, so nothing tells how near it is
            tried[name] = [str(error)]
            unlike.add(name)
    kind = model_class(speaking(config)).__name__
    nearest = min(
        tried, key=lambda name: (kind not in FAMILY.get(name).architectures, name in unlike, len(tried[name]))
    )
    return nearest, tried[nearest]


def speaking(config: ModelConfig) -> ModelConfig:
    """That of the whole language model, of one without its head."""
    return (
        config.model_copy(update={"kind": "decoder", "head": True, "causal": False})
        if config.causal
        else config
    )


def described(config: ModelConfig, family: str) -> dict[str, Any]:
    """config.json of a family for a config of ours; a UserError where the family has no such model at all."""
    if config.causal:
        whole, known = described(speaking(config), family), FAMILY.get(family).architectures
        usual = re.sub("ForCausalLM|LMHeadModel", "Model", whole["architectures"][0])
        return whole | {"architectures": [known.get("Embedder", usual)]}
    chosen, kind = FAMILY.get(family), model_class(config).__name__
    if kind not in chosen.architectures:
        raise UserError(f"its model is {kind}, there {' or '.join(chosen.architectures)}")
    return {"model_type": family, "architectures": [chosen.architectures[kind]], **chosen.write(config)}


def in_the_way(config: ModelConfig, family: str) -> list[str]:
    """What the family cannot say: it is told, read again, and what has become another part or size is in the way.

    A UserError says why it has no such model at all.
    """
    chosen, config = FAMILY.get(family), speaking(config)
    back = read_config(chosen, Given(described(config, family), family, _heads(config, chosen)))
    found: list[str] = []
    crossing = config.kind == "encoder-decoder"
    passed = (
        PASSED | UNREAD.get(model_class(config).__name__, set()) | (set() if crossing else CROSSING.keys())
    )
    for field in type(config).model_fields:
        ours, theirs = getattr(config, field), getattr(back, field)
        if field == "tie_embeddings" and not crossing:
            ours, theirs = ours in ("inputs", "none"), theirs in ("inputs", "none")
        if field in CROSSING:
            ours, theirs = (
                given or getattr(one, CROSSING[field]) for given, one in ((ours, config), (theirs, back))
            )
        if field == "map_bias" and ours != theirs:
            ours, theirs = _biased(config), _biased(back)
            theirs = None if ours is None else theirs
        if field == "pooling" and config.labels:
            ours = ours or POOLING.check(Choice("first"))  # as the classifier itself
        if field in LAYERED:
            found += _in_layers(field, config, back)
        elif field in passed or ours == theirs:
            continue
        elif isinstance(ours, Choice) and isinstance(theirs, Choice):
            found += _between(field, ours, theirs)
        else:
            found.append(f"{field} is {_named(getattr(config, field))}, there {_named(getattr(back, field))}")
    return found


def _biased(config: ModelConfig) -> bool | None:
    """Whether the maps behind an encoder's layers have biases; nothing where there are none."""
    there = (config.head and config.head_activation != "none") or config.labels or config.pooling
    return biased(config) if config.kind == "encoder" and there else None


def _named(value: object) -> str:
    """A part by its name, else the value."""
    return show(value.name if isinstance(value, Choice) else value)


def _heads(config: ModelConfig, family: Family) -> set[str]:
    """What the files hold of heads and of embeddings, which configs do not say."""
    ties = config.tie_embeddings
    there = {
        "head.bias": config.head_bias,
        "head.weight": ties in ("inputs", "none"),
        "decoder_embedding.token.weight": ties in ("target", "none"),
        "follows.weight": config.pairs,
    }
    return {row.theirs for row in family.rows(model_class(config).__name__) if there.get(row.ours[0])}


def _in_layers(field: str, config: ModelConfig, back: ModelConfig) -> list[str]:
    """What differs in some layer; however a pattern is written, it is what it makes of each.

    Positions that are added to the embeddings are so beside those of all layers.
    """
    layers = range(config.n_layers)
    pairs = [[part(model, field, i) for model in (config, back)] for i in layers]
    if field == "position" and any(
        POSITION.get(m.position.name).acts_on == "embeddings" for m in (config, back)
    ):
        pairs = [[config.position, back.position], *pairs]
    return list(dict.fromkeys(line for ours, theirs in pairs for line in _between(field, ours, theirs)))


def _between(field: str, ours: Choice, theirs: Choice) -> list[str]:
    if ours.name != theirs.name:
        return [f"{field} is {ours.name!r}, there {theirs.name!r}"]
    return [
        f"{key} of {field} {ours.name!r} is {show(value)}, there {show(theirs.options.get(key))}"
        for key, value in ours.options.items()
        if key != "dropout" and value != theirs.options.get(key)
    ]

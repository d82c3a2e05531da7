"""Where a model can be exported, and what stands in the way elsewhere: asked of each exporter's own limits, without weights."""

from __future__ import annotations

from collections.abc import Callable

from polyhead.config import ModelConfig
from polyhead.core.i18n import tr, translate_message
from polyhead.data_sections import TokenizerConfig
from polyhead.errors import UserError
from polyhead.export import ct2_limits, gguf_limits, onnx_limits
from polyhead.export.gguf_vocabulary import check_cutting
from polyhead.hf.writing import described, ids_in_the_way, nearest_family, token_ids
from polyhead.recipe import Recipe
from polyhead.text.learn import train_tokenizer
from polyhead.text.tokenizer import Tokenizer

NAMES = {"hf": "Hugging Face", "ctranslate2": "CTranslate2", "onnx": "ONNX", "gguf": "GGUF"}
"""The formats of ``polyhead export --to``, as people call them."""


def find_obstacles(
    config: ModelConfig, tokenizer: Tokenizer | None = None, origin: str | None = None
) -> dict[str, str]:
    """For each format the first part of the model or the tokenizer that it cannot hold; empty where it holds all.

    ``origin`` is the published family that the weights came from, if any.
    """
    if config.generator:  # what replaces tokens stays behind
        config = config.model_copy(update={"generator": 0, "pooling": None, "head": False})
    return {name: find(config, tokenizer, origin) for name, find in _FINDERS.items()}


def recipe_obstacles(recipe: Recipe) -> dict[str, str]:
    """The same of the model that a recipe makes new, before its text is read; classes are taken to be two."""
    tokenizer = sample_tokenizer(recipe.tokenizer)
    labels = ("0", "1") if recipe.task.name == "classification" else ()
    return find_obstacles(recipe.model.with_vocabulary(tokenizer.vocab_size, labels), tokenizer)


def sample_tokenizer(section: TokenizerConfig) -> Tokenizer:
    """A small tokenizer that cuts and joins as that of a recipe will."""
    return train_tokenizer(["a b"], section.kind, 300, section.sentinels)


def describe_targets(obstacles: dict[str, str]) -> str:
    """One line: ``exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'; not GGUF: ...``."""
    fitting = tr(", ").join(NAMES[name] for name, obstacle in obstacles.items() if not obstacle)
    return tr("; ").join(
        [
            tr("exports: {formats}", formats=fitting or tr("none")),
            *(
                tr(
                    "not {format}: {obstacle}",
                    format=NAMES[name],
                    obstacle=translate_message(obstacle, "plan"),
                )
                for name, obstacle in obstacles.items()
                if obstacle
            ),
        ]
    )


def _of_hf(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    family, obstacles = nearest_family(config, None, origin)
    if not obstacles and tokenizer is not None:
        obstacles = ids_in_the_way(described(config, family), token_ids(config, tokenizer))
    return _brief(obstacles)


def _of_ctranslate2(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    return _brief(ct2_limits.in_the_way(config))


def _of_onnx(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    return next((part for part, _ in onnx_limits.in_the_way(config)), "")


def _of_gguf(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    if config.kind != "decoder":
        return "language models only"
    obstacles = gguf_limits.nearest_arch(config)[2]
    if not obstacles and tokenizer is not None:
        try:
            check_cutting(tokenizer)
        except UserError:
            return "its tokenizer"
    return _brief(obstacles)


def _brief(obstacles: list[str]) -> str:
    """The first of them, without what would be allowed: ``position is 'rope'``."""
    return obstacles[0].partition(", there ")[0] if obstacles else ""


_FINDERS: dict[str, Callable[[ModelConfig, Tokenizer | None, str | None], str]] = {
    "hf": _of_hf,
    "ctranslate2": _of_ctranslate2,
    "onnx": _of_onnx,
    "gguf": _of_gguf,
}

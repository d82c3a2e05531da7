"""Find the export formats of a model and the obstacles to the others, from each exporter's limits, without
weights.
"""

from __future__ import annotations

from collections.abc import Callable

from polyhead.config.data_config import TokenizerConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_message
from polyhead.export import gguf_archs as gguf_limits
from polyhead.export import onnx_limits
from polyhead.export.ct2_limits import ct2_unsupported
from polyhead.export.gguf_vocabulary import check_pre_tokenizer
from polyhead.hf.save import config_dict, mismatched_ids, nearest_family, special_token_ids
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

FORMAT_NAMES = {"hf": "Hugging Face", "ctranslate2": "CTranslate2", "onnx": "ONNX", "gguf": "GGUF"}
"""Display names of the formats of ``polyhead export --to``."""


def find_obstacles(
    config: ModelConfig, tokenizer: Tokenizer | None = None, origin: str | None = None
) -> dict[str, str]:
    """Return for each format the first unsupported part of the model or tokenizer, empty if it supports all.

    ``origin`` is the Hugging Face family that the weights came from, if any.
    """
    if config.generator_layers:  # the generator is not exported
        config = config.model_copy(update={"generator_layers": 0, "pooling": None, "lm_head": False})
    return {name: find(config, tokenizer, origin) for name, find in _FINDERS.items()}


def find_recipe_obstacles(recipe: Recipe) -> dict[str, str]:
    """Return the obstacles of a recipe's new model, before its data is read; a classifier is assumed to have
    two classes.
    """
    tokenizer = make_sample_tokenizer(recipe.tokenizer)
    labels = ("0", "1") if recipe.task.name == "classification" else ()
    return find_obstacles(recipe.model.with_vocabulary(tokenizer.vocab_size, labels), tokenizer)


def make_sample_tokenizer(section: TokenizerConfig) -> Tokenizer:
    """Return a small tokenizer with the segmentation and decoding of a recipe's tokenizer."""
    return train_tokenizer(["a b"], section.kind, 300, section.sentinels)


def describe_targets(obstacles: dict[str, str]) -> str:
    """Return a line: ``exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'; not GGUF: ...``."""
    supported = tr(", ").join(FORMAT_NAMES[name] for name, obstacle in obstacles.items() if not obstacle)
    return tr("; ").join(
        [
            tr("exports: {formats}", formats=supported or tr("none")),
            *(
                tr(
                    "not {format}: {obstacle}",
                    format=FORMAT_NAMES[name],
                    obstacle=translate_message(obstacle, "plan"),
                )
                for name, obstacle in obstacles.items()
                if obstacle
            ),
        ]
    )


def _hf_obstacle(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    family, obstacles = nearest_family(config, None, origin)
    if not obstacles and tokenizer is not None:
        obstacles = mismatched_ids(config_dict(config, family), special_token_ids(config, tokenizer))
    return _shorten_obstacle(obstacles)


def _ctranslate2_obstacle(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    return _shorten_obstacle(ct2_unsupported(config))


def _onnx_obstacle(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    return next((part for part, _ in onnx_limits.onnx_unsupported(config)), "")


def _gguf_obstacle(config: ModelConfig, tokenizer: Tokenizer | None, origin: str | None) -> str:
    if config.kind != "decoder":
        return "language models only"
    obstacles = gguf_limits.nearest_arch(config)[2]
    if not obstacles and tokenizer is not None:
        try:
            check_pre_tokenizer(tokenizer)
        except UserError:
            return "its tokenizer"
    return _shorten_obstacle(obstacles)


def _shorten_obstacle(obstacles: list[str]) -> str:
    """Return the first obstacle without the supported values: ``position is 'rope'``."""
    return obstacles[0].partition(", expected ")[0] if obstacles else ""


_FINDERS: dict[str, Callable[[ModelConfig, Tokenizer | None, str | None], str]] = {
    "hf": _hf_obstacle,
    "ctranslate2": _ctranslate2_obstacle,
    "onnx": _onnx_obstacle,
    "gguf": _gguf_obstacle,
}

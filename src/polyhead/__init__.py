"""Polyhead builds, trains, measures and serves Transformers; every part is chosen by name.

import polyhead as ph

run = ph.load("runs/mine")                    a run directory, or a published checkpoint; help(run) lists what it can do
run.translate(["A dog barks."])               run.generate, run.classify, run.fill_mask, run.embed, run.score, ...
model = ph.build(ph.ModelConfig(vocab_size=8000, d_model=64, n_heads=4, n_layers=2), seed=1)      a torch.nn.Module

recipe = ph.recipe("train.en", "train.de", output="mine.yaml")          looks at your text and proposes a recipe
run = ph.train("mine.yaml", "train.steps=100")                         a recipe to a trained run
print(ph.compare("mine.yaml", vary={"norm": ["layernorm", "rmsnorm"]}, budget="10m"))

``polyhead parts`` lists the parts, docs/guide.md tells the rest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhead.config import ModelConfig as ModelConfig
    from polyhead.loading import load as load
    from polyhead.models import build as build
    from polyhead.planning import plan as plan
    from polyhead.registry import Choice as Choice
    from polyhead.verbs import compare as compare
    from polyhead.verbs import recipe as recipe
    from polyhead.verbs import train as train

__version__ = "0.1.0"
_HOMES = {
    "ModelConfig": "polyhead.config",
    "Choice": "polyhead.registry",
    "build": "polyhead.models",
    "load": "polyhead.loading",
    "plan": "polyhead.planning",
}
_VERBS = ("compare", "recipe", "train")  # functions of polyhead.verbs, and modules of these names
__all__ = ["Choice", "ModelConfig", "__version__", "build", "compare", "load", "plan", "recipe", "train"]


class _Verb(ModuleType):
    """A module that is called as the function of its name: ``ph.train(...)``, while ``polyhead.train.loop`` stays what it is.

    Importing a submodule binds it to its name in the package, where a function of that name would be lost.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name, for pools of processes; modules themselves cannot be pickled."""
        return import_module, (self.__name__,)

    @property
    def __wrapped__(self) -> Any:
        """The function, whose signature ``inspect`` and notebooks show."""
        return getattr(import_module("polyhead.verbs"), self.__name__.rpartition(".")[2])

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """That of the function, for ``help``."""
        return str(self.__wrapped__.__doc__)


class _Package(ModuleType):
    """The package makes verbs of the modules that have their names, whoever imports them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VERBS and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Each public name is imported when it is first used, so that `import polyhead` costs nothing (PEP 562)."""
    if name in _VERBS:
        return import_module(f"polyhead.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'polyhead' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

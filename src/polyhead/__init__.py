"""Polyhead builds, trains, evaluates and serves Transformers; every part is chosen by name.

import polyhead as ph

run = ph.load("runs/mine")              a run directory or a published checkpoint; help(run) lists its methods
run.translate(["A dog barks."])         run.generate, run.classify, run.fill_mask, run.embed, run.score, ...
config = ph.ModelConfig(vocab_size=8000, d_model=64, n_heads=4, n_layers=2)
model = ph.build(config, seed=1)        a torch.nn.Module

recipe = ph.init_recipe("train.en", "train.zh", output="mine.yaml") inspects your text and proposes a recipe
run = ph.train("mine.yaml", "train.steps=100")                      trains a recipe and returns the run
print(ph.compare("mine.yaml", vary={"norm": ["layernorm", "rmsnorm"]}, budget="10m"))

``polyhead components`` lists the parts; docs/guide.md is the guide.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhead.api.verbs import compare as compare
    from polyhead.api.verbs import init_recipe as init_recipe
    from polyhead.api.verbs import train as train
    from polyhead.config.model import ModelConfig as ModelConfig
    from polyhead.core.choice import Choice as Choice
    from polyhead.estimate.plan import estimate as estimate
    from polyhead.models import build
    from polyhead.run.load import load as load

__version__ = "0.1.0"
_LAZY_IMPORTS = {
    "ModelConfig": "polyhead.config.model",
    "Choice": "polyhead.core.registry",
    "build": "polyhead.models",
    "load": "polyhead.run.load",
    "init_recipe": "polyhead.api.verbs",
}
# functions that share their name with a subpackage -> the module that defines them
_VERB_MODULES = {
    "compare": "polyhead.api.verbs",
    "estimate": "polyhead.estimate.plan",
    "train": "polyhead.api.verbs",
}
__all__ = [
    "Choice",
    "ModelConfig",
    "__version__",
    "build",
    "compare",
    "estimate",
    "init_recipe",
    "load",
    "train",
]


class _CallableModule(ModuleType):
    """A module that can be called as the function of its name, ``ph.train(...)``.

    Importing a submodule binds it to its name in the package and would overwrite a function of the same name.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, for process pools; modules themselves cannot be pickled."""
        return import_module, (self.__name__,)

    @property
    def __wrapped__(self) -> Any:
        """The function, whose signature ``inspect`` and notebooks show."""
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_VERB_MODULES[name]), name)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The docstring of the function, for ``help``."""
        return str(self.__wrapped__.__doc__)


class _Package(ModuleType):
    """The package module; makes submodules that are named like a verb callable when they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VERB_MODULES and isinstance(value, ModuleType):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import polyhead` is cheap (PEP 562)."""
    if name in _VERB_MODULES:
        return import_module(f"polyhead.{name}")
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module 'polyhead' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_LAZY_IMPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

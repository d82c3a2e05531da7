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


class _Verb:
    """A function that has the name of a subpackage: ``ph.train(...)``, and ``polyhead.train.loop``."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the function lacks is of the subpackage."""
        return getattr(import_module(f"polyhead.{self.__name__}"), name)

    def __reduce__(self) -> str:
        """Pickle by name, for process pools."""
        return self.__name__

    @property
    def __wrapped__(self) -> Any:
        """The function, whose signature ``inspect`` and notebooks show."""
        return getattr(import_module(_VERB_MODULES[self.__name__]), self.__name__)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The docstring of the function, for ``help``."""
        return str(self.__wrapped__.__doc__)


class _Package(ModuleType):
    """The package; its public names are imported on first use, so that ``import polyhead`` is cheap."""

    def __getattr__(self, name: str) -> Any:
        if name not in _LAZY_IMPORTS:
            raise AttributeError(f"module 'polyhead' has no attribute {name!r}; it has {', '.join(__all__)}")
        return getattr(import_module(_LAZY_IMPORTS[name]), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Importing a subpackage binds it to its name, and would replace the verb of that name."""
        if name not in _VERB_MODULES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(__all__)


_package = _Package(__name__, __doc__)
vars(_package).update(globals(), **{name: _Verb(name) for name in _VERB_MODULES})
sys.modules[__name__] = _package

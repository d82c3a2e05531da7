"""Polyhead builds, trains, measures and serves Transformers; every part is chosen by name.

import polyhead as ph

run = ph.load("runs/mine")                    a run directory, or a published checkpoint; help(run) lists what it can do
run.translate(["A dog barks."])               run.generate, run.classify, run.fill_mask, run.embed, run.score, ...
model = ph.build(ph.ModelConfig(vocab_size=8000, d_model=64, n_heads=4, n_layers=2), seed=1)      a torch.nn.Module

Trainings are started from the shell (``polyhead train recipe.yaml``) or by ``polyhead.train.pipeline.run_training``;
``polyhead parts`` lists the parts, docs/guide.md tells the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhead.config import ModelConfig as ModelConfig
    from polyhead.loading import load as load
    from polyhead.models import build as build
    from polyhead.planning import plan as plan
    from polyhead.registry import Choice as Choice

__version__ = "0.1.0"
_HOMES = {
    "ModelConfig": "polyhead.config",
    "Choice": "polyhead.registry",
    "build": "polyhead.models",
    "load": "polyhead.loading",
    "plan": "polyhead.planning",
}
__all__ = ["Choice", "ModelConfig", "__version__", "build", "load", "plan"]


def __getattr__(name: str) -> Any:
    """Each public name is imported when it is first used, so that `import polyhead` costs nothing (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'polyhead' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

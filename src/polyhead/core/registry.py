"""Registries of parts by name. A part is a class or function; its keyword-only parameters are its options.

Positional parameters come from the model (sizes, a position scheme); keyword-only ones are chosen by the
user. So a new part is one new file, and its signature is its documentation and schema.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import threading
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, check_finite, format_value, known_names_hint, unknown_name_error
from polyhead.core.messages import from_validation_error
from polyhead.core.plugins import load_plugin

T = TypeVar("T", bound=Callable[..., Any])


@cache
def _read_options(part: Any) -> dict[str, tuple[Any, Any]]:
    """The keyword-only parameters of a part: name -> (type, default). Cached, since it is slow."""
    init = part.__init__ if inspect.isclass(part) else part
    hints = typing.get_type_hints(init, include_extras=True)
    parameters = inspect.signature(part).parameters.values()
    return {p.name: (hints.get(p.name, Any), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


@cache
def _option_adapters(part: Any) -> dict[str, TypeAdapter[Any]]:
    """A pydantic adapter for each option of a part, which converts values to its type."""
    return {name: TypeAdapter(kind) for name, (kind, _) in _read_options(part).items()}


class Registry(Generic[T]):
    """All parts of one kind, discovered by importing one package (or module) on first use.

    ``positional`` lists the names of the positional parameters of every part of the kind; empty if parts are
    not made by a call.
    """

    def __init__(self, kind: str, package: str, positional: str = "") -> None:
        self.kind, self.package, self.positional = kind, package, tuple(positional.split())
        self._parts: dict[str, T] = {}
        self._is_discovered = False
        self._discovery_lock = threading.RLock()  # reentrant: imported modules may look up parts of the kind

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a part under a name."""

        def add_part(part: T) -> T:
            assert name not in self._parts, f"{self.kind} {name!r} is registered twice"
            self._parts[name] = part
            return part

        return add_part

    def names(self) -> list[str]:
        """The names of all parts, sorted."""
        self._discover()
        return sorted(self._parts)

    def get(self, name: str) -> T:
        """The part of that name, or a plugin ``my_pkg.mine:Part``; a UserError if it is unknown."""
        if ":" in name:
            return self._load_plugin_part(name)
        self._discover()
        if name not in self._parts:
            module_name, dot, part = name.rpartition(".") if re.fullmatch(r"[\w.]+", name) else ("", "", "")
            hint = f"; a component of your own package is written {module_name}:{part}" if dot else ""
            raise UserError(f"{unknown_name_error(self.kind, name, self._parts)}{hint}")
        return self._parts[name]

    def options(self, name: str) -> dict[str, tuple[Any, Any]]:
        """The options of a part: name -> (type, default). Types may have ranges (``option_types``)."""
        return dict(_read_options(self.get(name)))

    def check(self, choice: Choice) -> Choice:
        """The choice with every option converted to its type and missing ones filled with their defaults.

        So a saved configuration keeps its meaning when a default changes later.
        """
        options = self.options(choice.name)
        for key in choice.options:
            if key not in options:
                raise UserError(
                    f"{self.kind} {format_value(choice.name)} has no option "
                    f"{format_value(key)}{known_names_hint(key, options)}"
                )
        adapters, checked = _option_adapters(self.get(choice.name)), {}
        for key, (_, default) in options.items():
            value = choice.options.get(key, default)
            if value is inspect.Parameter.empty:
                raise UserError(f"{self.kind} {choice.name!r} requires the option {key!r}")
            try:
                checked[key] = check_finite(adapters[key].validate_python(value, strict=False))
            except ValidationError as error:
                raise from_validation_error(error, prefix=f"{key} of {self.kind} {choice.name!r}") from None
            except UserError as error:
                raise UserError(f"{key} of {self.kind} {choice.name!r}: {error}") from None
        return Choice(choice.name, **checked)

    def build(self, choice: Choice, *args: Any) -> Any:
        """Build the chosen part from positional arguments and its options, which are checked."""
        part, options = self.get(choice.name), self.check(choice).options
        try:
            return part(*args, **options)
        except UserError:
            raise
        except Exception as error:
            if ":" not in choice.name:
                raise
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"{self.kind} {format_value(choice.name)} cannot be built: {why}") from error

    def _load_plugin_part(self, name: str) -> T:
        """Load ``my_pkg.mine:Part``."""
        try:
            return typing.cast(T, load_plugin(name, self.positional))
        except UserError as error:
            raise UserError(f"{self.kind} {format_value(name)}: {error}") from error

    def _discover(self) -> None:
        with self._discovery_lock:
            if self._is_discovered:
                return
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{self.package}."):
                importlib.import_module(module.name)
            self._is_discovered = True


ATTENTION: Registry[Any] = Registry("attention", "polyhead.nn.attention", "shape position")
POSITION: Registry[Any] = Registry("position", "polyhead.nn.position", "shape")
FEATURE_MAP: Registry[Any] = Registry("feature_map", "polyhead.nn.feature_map", "x")
SIMILARITY: Registry[Any] = Registry("similarity", "polyhead.nn.similarity", "q k")
NORM: Registry[Any] = Registry("norm", "polyhead.nn.norm", "d_model")
BLOCK: Registry[Any] = Registry("block", "polyhead.nn.block", "config shape position cross")
RESIDUAL: Registry[Any] = Registry("residual", "polyhead.nn.residual", "config cross")
FEED_FORWARD: Registry[Any] = Registry("feed_forward", "polyhead.nn.feed_forward", "d_model d_ff")
INIT: Registry[Any] = Registry("init", "polyhead.nn.init", "model config")
POOLING: Registry[Any] = Registry("pooling", "polyhead.nn.pooling", "config")
CACHE: Registry[Any] = Registry("cache", "polyhead.cache", "shape n_rows max_len")
SPECULATIVE: Registry[Any] = Registry("speculative", "polyhead.run.speculative", "target")
TOKENIZER: Registry[Any] = Registry("tokenizer", "polyhead.tokenizers.train_tokenizer", "texts vocab_size")
AUGMENT: Registry[Any] = Registry("augment", "polyhead.data.augment")
CHAT: Registry[Any] = Registry("chat", "polyhead.chat")
GRAMMAR: Registry[Any] = Registry("grammar", "polyhead.grammar")
OPTIMIZER: Registry[Any] = Registry("optimizer", "polyhead.train.optim", "model lr")
SCHEDULE: Registry[Any] = Registry("schedule", "polyhead.train.schedule", "d_model steps")
TASK: Registry[Any] = Registry("task", "polyhead.train.tasks", "")
ALL_REGISTRIES: tuple[Registry[Any], ...] = (
    TASK,
    BLOCK,
    ATTENTION,
    FEATURE_MAP,
    SIMILARITY,
    POSITION,
    NORM,
    RESIDUAL,
    FEED_FORWARD,
    INIT,
    POOLING,
    CACHE,
    SPECULATIVE,
    TOKENIZER,
    AUGMENT,
    CHAT,
    GRAMMAR,
    OPTIMIZER,
    SCHEDULE,
)

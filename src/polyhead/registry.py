"""Parts by name. A part is a class or function; its keyword-only parameters are its options.

Positional parameters are what the model gives (sizes, a position scheme); keyword-only ones are what
a user may choose. So a new part is one new file, and its signature is its documentation and schema.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import threading
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from polyhead.errors import UserError, among, bounded, explain, show, unknown
from polyhead.foreign import find

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True, init=False, repr=False)
class Choice:
    """A part chosen by name, with its options: ``"rope"`` or ``{"name": "rope", "theta": 500000.0}``."""

    name: str
    options: dict[str, Any]

    def __init__(self, name: str, /, **options: Any) -> None:
        if not isinstance(name, str):
            raise UserError(
                f"Choice wants the name of a part, got {show(name)}; its options are given by name, as Choice('rope', theta=5e5)"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", options)

    def __repr__(self) -> str:
        return f"Choice({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in self.options.items())])})"

    @classmethod
    def read(cls, given: Any) -> Choice:
        """The choice meant by a name, or by a mapping of a name and options."""
        if isinstance(given, Choice):
            return given
        if isinstance(given, str):
            return cls(given)
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise UserError(f"{show(given)} is not a part: give a name, or {{name: ..., option: value}}")
        return cls(given["name"], **{str(k): v for k, v in given.items() if k != "name"})

    def written(self) -> str | dict[str, Any]:
        """The shortest form that ``read`` takes back."""
        return {"name": self.name, **self.options} if self.options else self.name

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(cls.written)
        return core_schema.no_info_plain_validator_function(cls.read, serialization=written)


@cache
def _read_options(part: Any) -> dict[str, tuple[Any, Any]]:
    """The keyword-only parameters of a part: name -> (type, default). Slow, and asked for each config."""
    init = part.__init__ if inspect.isclass(part) else part
    hints = typing.get_type_hints(init, include_extras=True)
    parameters = inspect.signature(part).parameters.values()
    return {p.name: (hints.get(p.name, Any), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


@cache
def _adapters(part: Any) -> dict[str, TypeAdapter[Any]]:
    """What converts a value to the type of each option of a part."""
    return {name: TypeAdapter(kind) for name, (kind, _) in _read_options(part).items()}


class Registry(Generic[T]):
    """All parts of one kind, found by importing one package (or module) on the first question.

    ``given`` names what every part of the kind is given by position; nothing where parts are not made by a call.
    """

    def __init__(self, kind: str, package: str, given: str = "") -> None:
        self.kind, self.package, self.given = kind, package, tuple(given.split())
        self._parts: dict[str, T] = {}
        self._discovered = False
        self._discovering = threading.RLock()  # what is imported may ask for parts of the kind

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files a part under its name."""

        def file(part: T) -> T:
            assert name not in self._parts, f"{self.kind} {name!r} is registered twice"
            self._parts[name] = part
            return part

        return file

    def names(self) -> list[str]:
        """The names of all parts, sorted."""
        self._discover()
        return sorted(self._parts)

    def get(self, name: str) -> T:
        """The part of that name, or of another package, ``my_pkg.mine:Part``; an unknown one is a UserError."""
        if ":" in name:
            return self._foreign(name)
        self._discover()
        if name not in self._parts:
            place, dot, part = name.rpartition(".") if re.fullmatch(r"[\w.]+", name) else ("", "", "")
            own = f"; a part of a package of yours is written {place}:{part}" if dot else ""
            raise UserError(f"{unknown(self.kind, name, self._parts)}{own}")
        return self._parts[name]

    def options(self, name: str) -> dict[str, tuple[Any, Any]]:
        """The options of a part: name -> (type, default). A type may have a range, as those of ``polyhead.ranges``."""
        return dict(_read_options(self.get(name)))

    def check(self, choice: Choice) -> Choice:
        """The same choice, complete: every option converted to its type, those not given at their defaults.

        So a written configuration means the same when a default changes later.
        """
        options = self.options(choice.name)
        for key in choice.options:
            if key not in options:
                raise UserError(
                    f"{self.kind} {show(choice.name)} has no option {show(key)}{among(key, options)}"
                )
        adapters, checked = _adapters(self.get(choice.name)), {}
        for key, (_, default) in options.items():
            value = choice.options.get(key, default)
            if value is inspect.Parameter.empty:
                raise UserError(f"{self.kind} {choice.name!r} needs the option {key!r}")
            try:
                checked[key] = bounded(adapters[key].validate_python(value, strict=False))
            except ValidationError as error:
                raise explain(error, under=f"{key} of {self.kind} {choice.name!r}") from None
            except UserError as error:
                raise UserError(f"{key} of {self.kind} {choice.name!r}: {error}") from None
        return Choice(choice.name, **checked)

    def build(self, choice: Choice, *given: Any) -> Any:
        """Make the chosen part from what the model gives it and the options of the choice."""
        part = self.get(choice.name)
        try:
            return part(*given, **choice.options)
        except UserError:
            raise
        except Exception as error:
            if ":" not in choice.name:
                raise
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"{self.kind} {show(choice.name)} fails when it is made: {why}") from error

    def _foreign(self, name: str) -> T:
        """``my_pkg.mine:Part``."""
        try:
            return typing.cast(T, find(name, self.given))
        except UserError as error:
            raise UserError(f"{self.kind} {show(name)}: {error}") from error

    def _discover(self) -> None:
        with self._discovering:
            if self._discovered:
                return
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{self.package}."):
                importlib.import_module(module.name)
            self._discovered = True


ATTENTION: Registry[Any] = Registry("attention", "polyhead.nn.attention", "shape position")
POSITION: Registry[Any] = Registry("position", "polyhead.nn.position", "shape")
FEATURE_MAP: Registry[Any] = Registry("feature_map", "polyhead.nn.feature_map", "x")
SIMILARITY: Registry[Any] = Registry("similarity", "polyhead.nn.similarity", "q k")
NORM: Registry[Any] = Registry("norm", "polyhead.nn.norm", "d_model")
BLOCK: Registry[Any] = Registry("block", "polyhead.nn.block", "config shape position cross")
FEED_FORWARD: Registry[Any] = Registry("feed_forward", "polyhead.nn.feed_forward", "d_model d_ff")
INIT: Registry[Any] = Registry("init", "polyhead.nn.init", "model config")
POOLING: Registry[Any] = Registry("pooling", "polyhead.nn.pooling", "config")
CACHE: Registry[Any] = Registry("cache", "polyhead.cache", "shape n_rows max_len")
SPECULATE: Registry[Any] = Registry("speculate", "polyhead.speculate", "target")
TOKENIZER: Registry[Any] = Registry("tokenizer", "polyhead.text.trainers", "texts vocab_size")
CHAT: Registry[Any] = Registry("chat", "polyhead.text.chat")
FORM: Registry[Any] = Registry("form", "polyhead.text.form")
OPTIMIZER: Registry[Any] = Registry("optimizer", "polyhead.train.optim", "model lr")
SCHEDULE: Registry[Any] = Registry("schedule", "polyhead.train.schedule", "d_model steps")
TASK: Registry[Any] = Registry("task", "polyhead.train.tasks", "")
ALL: tuple[Registry[Any], ...] = (
    TASK,
    BLOCK,
    ATTENTION,
    FEATURE_MAP,
    SIMILARITY,
    POSITION,
    NORM,
    FEED_FORWARD,
    INIT,
    POOLING,
    CACHE,
    SPECULATE,
    TOKENIZER,
    CHAT,
    FORM,
    OPTIMIZER,
    SCHEDULE,
)

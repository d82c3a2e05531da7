"""Parts by name: found, checked, built, and every mistake answered with the nearest right name."""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import ALL_REGISTRIES, Registry


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    """A registry of two parts in a package of its own, found by importing it."""
    package = tmp_path / "sample_parts"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from polyhead.core.registry import Registry\nR = Registry('part', 'sample_parts')\n"
    )
    (package / "spin.py").write_text(
        "from sample_parts import R\n"
        "@R.register('spin')\n"
        "class Spin:\n"
        "    def __init__(self, width: int, *, theta: float = 1e4, steps: int | None = None, flip: bool = "
        "False):\n        self.given = (width, theta, steps, flip)\n"
    )
    (package / "plain.py").write_text(
        "from sample_parts import R\n@R.register('plain')\ndef plain(width): return width\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("sample_parts").R
    for name in [name for name in sys.modules if name.startswith("sample_parts")]:
        del sys.modules[name]


def test_a_part_in_a_new_file_is_found(parts: Registry[Any]) -> None:
    assert parts.names() == ["plain", "spin"]


def test_options_are_the_keyword_only_parameters(parts: Registry[Any]) -> None:
    assert parts.options("spin") == {
        "theta": (float, 1e4),
        "steps": (int | None, None),
        "flip": (bool, False),
    }
    assert parts.options("plain") == {}


def test_options_are_converted_to_their_types(parts: Registry[Any]) -> None:
    assert parts.check(Choice("spin")) == Choice("spin", theta=1e4, steps=None, flip=False)
    choice = parts.check(Choice("spin", theta="5e5", steps="3", flip="yes"))
    assert choice == Choice("spin", theta=500000.0, steps=3, flip=True)
    assert parts.build(choice, 8).given == (8, 500000.0, 3, True)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("spinn"), "unknown part 'spinn'; did you mean 'spin'? Known: plain, spin"),
        (Choice("zzz"), "unknown part 'zzz'; known: plain, spin"),
        (
            Choice("spin", teta=1),
            "part 'spin' has no option 'teta'; did you mean 'theta'? Known: flip, steps, theta",
        ),
        (Choice("plain", theta=1), "part 'plain' has no option 'theta'; known: none"),
        (Choice("spin", theta="soon"), "theta of part 'spin': 'soon' is not a number"),
        (Choice("spin", steps=1.5), "steps of part 'spin': 1.5 is not an integer"),
    ],
)
def test_a_wrong_choice_is_explained(parts: Registry[Any], choice: Choice, message: str) -> None:
    with pytest.raises(UserError) as error:
        parts.check(choice)
    assert str(error.value) == message


def test_a_name_is_registered_once(parts: Registry[Any]) -> None:
    parts.names()
    with pytest.raises(AssertionError, match="registered twice"):
        parts.register("spin")(lambda: None)


@pytest.mark.parametrize("registry", ALL_REGISTRIES, ids=lambda registry: registry.kind)
def test_every_part_says_what_it_is_and_types_its_options(registry: Registry[Any]) -> None:
    assert registry.names()
    for name in registry.names():
        assert registry.get(name).__doc__, f"{registry.kind} {name} has no docstring"
        options = registry.options(name)
        needed = {
            option: kind()
            for option, (kind, default) in options.items()
            if default is inspect.Parameter.empty
        }
        for option, (kind, default) in options.items():
            assert kind is not Any, f"{registry.kind} {name}: option {option} has no type"
            given = needed.get(option, default)
            checked = registry.check(Choice(name, **needed | {option: given}))
            assert checked.options[option] == given


@pytest.mark.parametrize("registry", ALL_REGISTRIES, ids=lambda registry: registry.kind)
def test_every_part_takes_by_position_what_its_kind_is_given(registry: Registry[Any]) -> None:
    """So that a part of another package can be told by it."""
    for name in registry.names() if registry.positional else ():
        parameters = inspect.signature(registry.get(name)).parameters.values()
        taken = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        assert tuple(taken) == registry.positional, f"{registry.kind} {name}"
    others = [other.positional for other in ALL_REGISTRIES if other is not registry]
    assert not registry.positional or registry.positional not in others, "two kinds are given the same"


def test_an_option_without_default_is_asked_for() -> None:
    registry: Registry[Any] = Registry("kind", "polyhead.core.errors")
    registry.register("part")(_needy)
    with pytest.raises(UserError, match="kind 'part' requires the option 'width'"):
        registry.check(Choice("part"))
    assert registry.check(Choice("part", width="3")) == Choice("part", width=3)


def _needy(*, width: int) -> None: ...


def test_literal_options_name_what_is_allowed() -> None:
    registry: Registry[Any] = Registry("kind", "polyhead.core.errors")

    @registry.register("part")
    def part(*, scaling: Literal["none", "linear"] = "none") -> None: ...

    with pytest.raises(UserError) as error:
        registry.check(Choice("part", scaling="liner"))
    message = "scaling of kind 'part': 'liner' is not one of none, linear; did you mean 'linear'?"
    assert str(error.value) == message


def test_threads_that_ask_at_once_find_the_same_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second asks while the first is still importing."""
    package = tmp_path / "slow_parts"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import threading\nfrom polyhead.core.registry import Registry\nR = Registry('part', 'slow_parts')\n"
        "begun, go_on = threading.Event(), threading.Event()\n"
    )
    (package / "one.py").write_text(
        "from slow_parts import R, begun, go_on\nbegun.set()\ngo_on.wait(10)\n"
        "@R.register('one')\ndef one(): return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    slow = __import__("slow_parts")
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(slow.R.get("one")())) for _ in range(3)]
    threads[0].start()
    assert slow.begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    threads[1].join(0.2)  # it waits
    assert found == []
    slow.go_on.set()
    for thread in threads:
        thread.join(10)
    assert found == [1, 1, 1]
    for name in ("slow_parts", "slow_parts.one"):
        del sys.modules[name]


def test_a_module_that_cannot_be_imported_is_named_each_time(parts: Registry[Any], tmp_path: Path) -> None:
    (tmp_path / "sample_parts" / "wrong.py").write_text("import nowhere_at_all\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            parts.get("spin")

import inspect
import re
import sys
import threading
from typing import Any, Literal

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import ALL_REGISTRIES, Registry

SPIN = """from sample_parts import R
@R.register('spin')
class Spin:
    def __init__(self, width: int, *, theta: float = 1e4, steps: int | None = None, flip: bool = False):
        self.options = (width, theta, steps, flip)
"""


@pytest.fixture
def write_package(tmp_path, monkeypatch):
    names = []

    def write(name, **modules):
        (tmp_path / name).mkdir()
        for module, text in modules.items():
            (tmp_path / name / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        names.append(name)
        return __import__(name)

    yield write
    for module in [module for module in sys.modules if module.startswith(tuple(names or ["\0"]))]:
        del sys.modules[module]


@pytest.fixture
def registry(write_package):
    init = "from polyhead.core.registry import Registry\nR = Registry('part', 'sample_parts')\n"
    plain = "from sample_parts import R\n@R.register('plain')\ndef plain(width): return width\n"
    return write_package("sample_parts", __init__=init, spin=SPIN, plain=plain).R


def test_parts_and_their_options_are_found_and_converted(registry, tmp_path):
    assert registry.names() == ["plain", "spin"]
    options = {"theta": (float, 1e4), "steps": (int | None, None), "flip": (bool, False)}
    assert registry.options("spin") == options and registry.options("plain") == {}
    assert registry.check(Choice("spin")) == Choice("spin", theta=1e4, steps=None, flip=False)
    choice = registry.check(Choice("spin", theta="5e5", steps="3", flip="yes"))
    assert choice == Choice("spin", theta=500000.0, steps=3, flip=True)
    assert registry.build(choice, 8).options == (8, 500000.0, 3, True)
    with pytest.raises(AssertionError, match="registered twice"):
        registry.register("spin")(lambda: None)


def test_module_that_fails_to_import_is_named(registry, tmp_path):
    (tmp_path / "sample_parts" / "wrong.py").write_text("import nowhere_at_all\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            registry.get("spin")


def test_required_and_literal_options_name_what_is_allowed():
    registry = Registry("kind", "polyhead.core.errors")

    @registry.register("part")
    def part(*, width: int, scaling: Literal["none", "linear"] = "none"): ...

    with pytest.raises(UserError, match="kind 'part' requires the option 'width'"):
        registry.check(Choice("part"))
    assert registry.check(Choice("part", width="3")) == Choice("part", width=3, scaling="none")
    message = "scaling of kind 'part': 'liner' is not one of none, linear; did you mean 'linear'\\?$"
    with pytest.raises(UserError, match=message):
        registry.check(Choice("part", width=3, scaling="liner"))


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
def test_invalid_choice_is_refused(registry, choice, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        registry.check(choice)


@pytest.mark.parametrize("registry", ALL_REGISTRIES, ids=lambda registry: registry.kind)
def test_every_part_has_a_docstring_and_typed_options(registry):
    """The kind of a part of another package is found by its positional parameters."""
    assert registry.names()
    for name in registry.names():
        part = f"{registry.kind} {name}"
        assert registry.get(name).__doc__, f"{part} has no docstring"
        options = registry.options(name)
        required = {o: kind() for o, (kind, default) in options.items() if default is inspect.Parameter.empty}
        for option, (kind, default) in options.items():
            assert kind is not Any, f"{part}: option {option} has no type"
            value = required.get(option, default)
            assert registry.check(Choice(name, **required | {option: value})).options[option] == value
        if registry.positional:
            parameters = inspect.signature(registry.get(name)).parameters.values()
            positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
            assert positional == registry.positional, part
    kinds = [other.positional for other in ALL_REGISTRIES]
    assert not registry.positional or kinds.count(registry.positional) == 1


def test_concurrent_lookups_wait_for_the_import(write_package):
    init = (
        "import threading\nfrom polyhead.core.registry import Registry\nR = Registry('part', 'slow_parts')\n"
        "started, proceed = threading.Event(), threading.Event()\n"
    )
    module = (
        "from slow_parts import R, started, proceed\nstarted.set()\nproceed.wait(100)\n"
        "@R.register('one')\ndef one(): return 1\n"
    )
    package, results = write_package("slow_parts", __init__=init, one=module), []
    threads = [threading.Thread(target=lambda: results.append(package.R.get("one")())) for _ in range(3)]
    threads[0].start()
    assert package.started.wait(100)
    for thread in threads[1:]:
        thread.start()
    threads[1].join(0.2)
    assert results == []
    package.proceed.set()
    for thread in threads:
        thread.join(100)
    assert results == [1, 1, 1]

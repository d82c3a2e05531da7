import os

import pytest
import torch
from tests.kernels.user_cache_helpers import set_owner

from polyhead.kernels.training import products
from polyhead.kernels.training.products import fastest_product, multiply


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_choices()
    yield tmp_path
    forget_choices()


def forget_choices():
    products._choices.clear()
    products._folder.cache_clear()


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Clock:
    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(products.time, "perf_counter", lambda: self.now)

    def product(self, seconds):
        def multiply(x, weight):
            self.now += seconds
            self.calls += 1
            return x @ weight.T

        return multiply

    def make_candidates(self):
        return {"slow": self.product(2.0), "fast": self.product(1.0)}


X, WEIGHT = torch.randn(256, 64), torch.randn(128, 64)


def choose(kind, candidates, x=X):
    return fastest_product(kind, candidates, (*x.shape, len(WEIGHT)), x, WEIGHT)


def test_fastest_choice_is_stored_by_shape_and_kind(cache_home, clock):
    candidates = clock.make_candidates()
    assert choose("linear", candidates) is candidates["fast"]
    calls = clock.calls
    assert choose("linear", candidates, X[:200]) is candidates["fast"]
    assert clock.calls == calls
    assert [path.read_text() for path in cache_home.glob("polyhead/products-*/linear-*")] == ["fast"]
    forget_choices()  # as in the next process, where now the other one would be faster
    other_candidates = {"slow": clock.product(1.0), "fast": clock.product(2.0)}
    assert choose("linear", other_candidates) is other_candidates["fast"]
    assert clock.calls == calls
    candidates = clock.make_candidates()
    choose("linear", candidates)
    calls = clock.calls
    choose("weight", candidates)
    choose("linear", candidates, torch.randn(300, 64))
    assert clock.calls == 3 * calls
    assert choose("linear", candidates, X[:8]) is candidates["slow"]  # small products are not measured
    assert clock.calls == 3 * calls


@pytest.fixture
def damaged_choice(request, cache_home, monkeypatch):
    choose("linear", {"slow": lambda x, weight: x})
    [path] = cache_home.glob("polyhead/products-*/linear-*")
    if request.param == "of another user":
        set_owner(monkeypatch, path, 4321)
    elif request.param == "writable by all":
        path.chmod(0o666)
    elif request.param == "link":
        path.rename(cache_home / "target")
        path.symlink_to(cache_home / "target")
    elif request.param == "large":
        os.truncate(path, 2**43)
    else:
        path.write_bytes({"unknown": b"gone", "no text": b"\xff"}[request.param])
    forget_choices()
    return path


@pytest.mark.parametrize(
    "damaged_choice",
    ["unknown", "no text", "large", "of another user", "writable by all", "link"],
    indirect=True,
)
def test_unusable_choices_are_replaced(damaged_choice, clock):
    candidates = clock.make_candidates()
    assert choose("linear", candidates) is candidates["fast"]
    assert damaged_choice.read_bytes() == b"fast"
    assert damaged_choice.lstat().st_mode & 0o777 == 0o600
    assert damaged_choice.lstat().st_mode >> 12 == 8  # a regular file


@pytest.mark.parametrize("failure", ["file", "shared directory", "no home"])
def test_choices_hold_for_the_process_without_cache(failure, cache_home, clock, monkeypatch):
    candidates = clock.make_candidates()
    if failure == "file":
        (cache_home / "polyhead").write_text("a file")
    elif failure == "shared directory":
        choose("linear", {"slow": candidates["slow"]})
        forget_choices()
        (cache_home / "polyhead").chmod(0o777)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert choose("linear", candidates) is candidates["fast"]
    calls = clock.calls
    assert choose("linear", candidates) is candidates["fast"] and clock.calls == calls
    assert not [path for path in cache_home.rglob("*") if path.is_file() and path.read_text() == "fast"]


def test_choice_of_the_first_process_holds(cache_home, monkeypatch):
    """Another process keeps its choice while this one measures."""
    candidates = {"first": torch.add, "second": torch.mul}

    def measure(candidates, inputs):
        monkeypatch.setattr(products, "_measure", lambda candidates, inputs: "second")
        choose("linear", candidates)
        products._choices.clear()
        return "first"

    monkeypatch.setattr(products, "_measure", measure)
    assert choose("linear", candidates) is candidates["second"]
    products._choices.clear()
    assert choose("linear", candidates) is candidates["second"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("choice", ["torch", "onednn"])
def test_each_candidate_computes_the_products(choice, dtype, monkeypatch):
    monkeypatch.setattr(products, "_MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "_measure", lambda candidates, inputs: choice)
    torch.manual_seed(1)
    x, weight, grad = (torch.randn(shape).to(dtype) for shape in ((300, 70), (90, 70), (300, 90)))
    bias = torch.randn(90).to(dtype)
    x64, w64, g64 = x.double(), weight.double(), grad.double()
    exact = x64 @ w64.T + bias.double(), g64 @ w64, g64.T @ x64
    terms = (x, weight.T, bias), (grad, weight), (grad.T, x)
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    for kind, term, expected in zip(("linear", "input", "weight"), terms, exact, strict=True):
        result = multiply(kind, *term)
        assert (result - expected).norm() <= tolerance * expected.norm()

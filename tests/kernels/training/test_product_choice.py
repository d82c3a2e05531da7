"""The choice between products is measured once and kept."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyhead.kernels.training import product_choice
from polyhead.kernels.training.product_choice import Product, fastest_product
from polyhead.kernels.training.products import grad_input, grad_weight, linear_output


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_choices()
    yield tmp_path
    forget_choices()


def forget_choices() -> None:
    product_choice._choices.clear()
    product_choice._folder.cache_clear()


class Clock:
    """The time, which only the candidates advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(product_choice.time, "perf_counter", lambda: self.now)

    def product(self, seconds: float):
        def multiply(x: Tensor, weight: Tensor) -> Tensor:
            self.now += seconds
            self.calls += 1
            return x @ weight.T

        return multiply


X, WEIGHT = torch.randn(256, 64), torch.randn(128, 64)


def choose(kind: str, candidates: dict[str, Product], x: Tensor = X) -> Product:
    return fastest_product(kind, candidates, (*x.shape, len(WEIGHT)), x, WEIGHT)


def test_the_fastest_is_measured_once_and_kept_for_other_processes(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    candidates = {"slow": clock.product(2.0), "fast": clock.product(1.0)}
    assert choose("linear", candidates) is candidates["fast"]
    calls = clock.calls
    assert choose("linear", candidates, X[:200]) is candidates["fast"]
    assert clock.calls == calls
    assert [path.read_text() for path in cache_home.glob("polyhead/products-*/*")] == ["fast"]
    forget_choices()  # as in the next process, where now the other one would be faster
    later = {"slow": clock.product(1.0), "fast": clock.product(2.0)}
    assert choose("linear", later) is later["fast"]
    assert clock.calls == calls


def test_another_shape_or_kind_is_another_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    candidates = {"slow": clock.product(2.0), "fast": clock.product(1.0)}
    choose("linear", candidates)
    calls = clock.calls
    choose("weight", candidates)
    choose("linear", candidates, torch.randn(300, 64))
    assert clock.calls == 3 * calls


def test_small_products_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    candidates = {"first": clock.product(2.0), "second": clock.product(1.0)}
    assert choose("linear", candidates, X[:8]) is candidates["first"]
    assert not clock.calls


@pytest.mark.parametrize("damage", ["unknown", "no directory"])
def test_a_choice_that_cannot_be_kept_holds_for_the_process(
    damage: str, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    candidates = {"slow": clock.product(2.0), "fast": clock.product(1.0)}
    if damage == "unknown":
        choose("linear", candidates)
        [path] = cache_home.glob("polyhead/products-*/*")
        path.write_text("gone")
        forget_choices()
    else:
        (cache_home / "polyhead").write_text("a file")
    assert choose("linear", candidates) is candidates["fast"]
    calls = clock.calls
    assert choose("linear", candidates) is candidates["fast"]
    assert clock.calls == calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("choice", ["torch", "onednn"])
def test_each_candidate_computes_the_products(
    choice: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_choice, "_MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(product_choice, "_measure", lambda candidates, inputs: choice)
    torch.manual_seed(1)
    x, weight, grad = (torch.randn(shape).to(dtype) for shape in ((300, 70), (90, 70), (300, 90)))
    bias = torch.randn(90).to(dtype)
    exact = (
        x.double() @ weight.double().T + bias.double(),
        grad.double() @ weight.double(),
        grad.double().T @ x.double(),
    )
    found = linear_output(x, weight, bias), grad_input(grad, weight), grad_weight(grad, x)
    assert [part.dtype for part in found] == [dtype, dtype, torch.float32]
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    for ours, true in zip(found, exact, strict=True):
        assert (ours - true).norm() <= tolerance * true.norm()

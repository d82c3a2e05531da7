"""What depends on positions alone is computed once a step, and never for another step."""

import copy
import pickle

import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.core.registry import POSITION
from polyhead.models import build
from polyhead.nn.position import alibi, disentangled, rope, shaw, t5
from polyhead.nn.position.memo import MemoizeLast

MAKERS = {
    "rope": (rope.Rope, "_cos_sin"),
    "alibi": (alibi.Alibi, "_compute_bias"),
    "t5": (t5.T5Bias, "_compute_index"),
    "shaw": (shaw.Shaw, "_clip_distances"),
    "disentangled": (disentangled.DisentangledPosition, "_compute_index"),
}


def counted():
    """A function that adds up what it is given, and how often it was called."""
    calls = []

    def total(*given):
        calls.append(given)
        return sum(x if isinstance(x, int) else x.sum() for x in given)

    return total, calls


def test_the_same_tensor_is_looked_at_once_and_another_one_anew():
    total, calls = counted()
    once, pos = MemoizeLast(), torch.arange(4)
    assert once(total, pos, 3) == once(total, pos, 3) == 9
    assert once(total, pos.view(4), 3) == 9  # a view of the same memory
    assert len(calls) == 1
    assert once(total, pos.clone(), 3) == 9
    assert once(total, pos, 4) == 10
    assert once(total, pos[1:], 4) == 10
    assert once(total, pos[None].mT, 4) == 10
    assert len(calls) == 5


def test_two_things_can_be_asked_for_in_turn():
    total, calls = counted()
    once = MemoizeLast()
    for _ in range(3):
        assert [once(total, 1, 2), once(total, 2, 2)] == [3, 4]
    assert len(calls) == 2


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_a_tensor_that_was_written_into_is_another_one(inference, view):
    total, calls = counted()
    with torch.inference_mode(inference):
        once, pos = MemoizeLast(), torch.arange(4)
        asked = pos[None] if view else pos
        assert once(total, asked) == once(total, asked) == 6
        pos += 1
        assert once(total, asked) == once(total, asked) == 10
        assert len(calls) == 2


def test_a_result_of_inference_mode_is_not_trained_with():
    once, x = MemoizeLast(), torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        once(torch.arange, 3)
    (x * once(torch.arange, 3)).sum().backward()
    assert x.grad.tolist() == [0, 1, 2]
    with torch.inference_mode():
        pos = torch.arange(3)
        assert once(torch.neg, pos).tolist() == [0, -1, -2]
    (x * once(torch.neg, pos)).sum().backward()
    assert x.grad.tolist() == [0, 0, 0]


def test_a_result_has_no_graph_and_a_copy_has_no_result():
    total, calls = counted()
    once, x = MemoizeLast(), torch.ones(3, requires_grad=True)
    assert not once(total, x * 2).requires_grad
    y = x.detach()
    for other in (once, copy.deepcopy(once), pickle.loads(pickle.dumps(once))):
        other(total, y)
        other(total, y)
    assert len(calls) == 4


def model(position):
    sizes = {"vocab_size": 20, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "d_ff": 16}
    return build(ModelConfig(**sizes, position=position, dropout=0.0), seed=1)


def test_every_scheme_of_heads_and_scores_is_tested_here():
    acting = {name for name in POSITION.names() if POSITION.get(name).kind in ("heads", "scores")}
    assert acting == set(MAKERS)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_computes_once_a_step_for_each_stack(name, padded, monkeypatch):
    part, method = MAKERS[name]
    calls, original = [], getattr(part, method)
    monkeypatch.setattr(part, method, lambda *given: calls.append(1) or original(*given))
    made = model(name)
    pos = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]]) if padded else None
    for _ in range(2):
        made(torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 6)), pos).sum().backward()
    each = 2 if name == "rope" else 1  # there are fewer keys than queries
    assert len(calls) == 2 * each  # the same lengths, and positions that are the same tensor, in both steps
    made(torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 7)), None if pos is None else pos.clone())
    assert len(calls) == (4 if padded else 3) * each


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_do_not_depend_on_what_came_before(name):
    """Training, decoding in inference mode, bf16, copies and casts take turns on one model."""
    torch.manual_seed(0)
    made, fresh = model(name), model(name)
    source, target = torch.randint(0, 20, (2, 4)), torch.randint(0, 20, (2, 6))
    ragged = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])

    def losses(of, pos):
        loss = of(source, target, pos).square().mean()
        (gradient,) = torch.autograd.grad(loss, [of.decoder_embedding.token.weight])
        return loss.detach(), gradient

    for pos in (ragged, None, ragged):
        with torch.inference_mode():
            made(source, target, pos)
        with torch.no_grad():
            made(source, target, pos)
        with torch.autocast("cpu", torch.bfloat16):
            losses(made, pos)
        torch.testing.assert_close(
            losses(copy.deepcopy(made), pos), losses(copy.deepcopy(fresh), pos), rtol=0, atol=0
        )
        torch.testing.assert_close(losses(made, pos), losses(copy.deepcopy(fresh), pos), rtol=0, atol=0)
        losses(made.double(), pos)
        made.float()
    ragged[1] = torch.tensor([5, -1, 0, 2])  # written into
    torch.testing.assert_close(losses(made, ragged), losses(copy.deepcopy(fresh), ragged), rtol=0, atol=0)

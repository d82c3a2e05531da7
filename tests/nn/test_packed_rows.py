"""Layers that read tokens side by side, and padding between them."""

import pytest
import torch

from polyhead.nn.packed_rows import apply_per_document, apply_unpadded, first_and_last, has_several_documents

POS = torch.tensor([[0, 1, 2, 3], [-1, 0, -1, 1], [0, -1, -1, -1], [-1, -1, -1, -1]])


def differences(x):
    """Each token minus the one before it; nothing is before the first."""
    return x - torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def test_a_layer_sees_the_tokens_of_a_row_as_neighbours():
    x = torch.randn(4, 4, 3, dtype=torch.float64, requires_grad=True)
    out, seen = apply_unpadded(differences, x, POS), torch.zeros(4, 4, 3, dtype=torch.float64)
    for b in range(4):
        before = 0
        for t in range(4):
            if POS[b, t] >= 0:
                seen[b, t] = x[b, t] - before
                before = x[b, t]
    assert torch.equal(out, seen)
    weight = torch.randn(4, 4, 3, dtype=torch.float64)
    grads = [torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (out, seen)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-15)


def test_what_stands_in_padding_is_never_read():
    x = torch.randn(4, 4, 3).masked_fill(POS[..., None] < 0, float("nan"))
    assert apply_unpadded(differences, x, POS).isfinite().all()
    assert (apply_unpadded(lambda h: h + 1, x, POS)[POS < 0] == 0).all()


def test_whole_rows_are_given_as_they_are():
    x = torch.randn(2, 3, 1)
    assert torch.equal(apply_unpadded(differences, x, None), differences(x))


@pytest.mark.parametrize("given", [True, False])
def test_the_ends_of_a_row_are_its_first_and_last_token(given):
    x = torch.randn(4, 4, 3)
    pos = POS if given else None
    wanted = [(0, 3), (1, 3), (0, 0), None] if given else [(0, 3)] * 4
    for row, at, found in zip(x, wanted, first_and_last(x, pos), strict=True):
        assert torch.equal(found, torch.zeros(6) if at is None else torch.cat([row[at[0]], row[at[1]]]))


PACKED = torch.tensor(
    [[0, 1, 2, 0, 1, 0], [4, 5, 0, -1, 1, -1], [-1, 0, 1, 2, -1, 3], [-1, -1, -1, -1, -1, -1]]
)
DOCUMENTS = [(0, [0, 1, 2]), (0, [3, 4]), (0, [5]), (1, [0, 1]), (1, [2, 4]), (2, [1, 2, 3, 5])]


def test_documents_of_a_row_are_shown_to_a_layer_each_alone():
    x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    shown = []

    def layer(h, pos):
        shown.append(pos)
        return apply_unpadded(lambda rows: differences(rows) * 2, h, pos)

    out = apply_per_document(layer, x, PACKED)
    assert shown[0].shape == (6, 4)
    assert sorted(tuple(row[row >= 0].tolist()) for row in shown[0]) == sorted(
        tuple(PACKED[row, slots].tolist()) for row, slots in DOCUMENTS
    )
    for row, slots in DOCUMENTS:
        assert torch.equal(out[row, slots], 2 * differences(x[row : row + 1, slots])[0])
    assert (out[PACKED < 0] == 0).all()
    (g,) = torch.autograd.grad(out[1, 4].sum(), x)
    assert g[1, 2].abs().sum() > 0 and g[1, 4].abs().sum() > 0
    assert g.abs().sum() == g[1, [2, 4]].abs().sum()


def test_a_row_is_of_several_documents_where_position_0_comes_again():
    assert has_several_documents(PACKED)
    assert not has_several_documents(PACKED[2:])
    assert not has_several_documents(torch.arange(4)[None])

import pytest
import torch

from polyhead.nn.packed_rows import apply_per_document, apply_unpadded, first_and_last
from polyhead.nn.positions import has_several_documents

POS = torch.tensor([[0, 1, 2, 3], [-1, 0, -1, 1], [0, -1, -1, -1], [-1, -1, -1, -1]])
PACKED_POS = torch.tensor(
    [[0, 1, 2, 0, 1, 0], [4, 5, 0, -1, 1, -1], [-1, 0, 1, 2, -1, 3], [-1, -1, -1, -1, -1, -1]]
)
DOCUMENTS = [(0, [0, 1, 2]), (0, [3, 4]), (0, [5]), (1, [0, 1]), (1, [2, 4]), (2, [1, 2, 3, 5])]


def difference(x):
    return x - torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def test_unpadded_rows_and_documents_are_separate():
    x = torch.randn(4, 4, 3, dtype=torch.float64, requires_grad=True)
    actual, expected = apply_unpadded(difference, x, POS), torch.zeros(4, 4, 3, dtype=torch.float64)
    for b in range(4):
        slots = (POS[b] >= 0).nonzero()[:, 0]
        expected[b, slots] = difference(x[b : b + 1, slots])[0]
    assert torch.equal(actual, expected)
    weight = torch.randn(4, 4, 3, dtype=torch.float64)
    gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-15)
    assert torch.equal(apply_unpadded(difference, x, None), difference(x))
    x = torch.randn(4, 4, 3).masked_fill(POS[..., None] < 0, float("nan"))
    assert apply_unpadded(difference, x, POS).isfinite().all()
    assert (apply_unpadded(lambda h: h + 1, x, POS)[POS < 0] == 0).all()
    x, calls = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True), []

    def layer(h, documents):
        calls.append(documents.pos)
        return apply_unpadded(lambda rows: difference(rows) * 2, h, documents.pos)

    output = apply_per_document(layer, x, PACKED_POS)
    (pos,) = calls
    assert pos.shape == (6, 4)
    documents = sorted(PACKED_POS[row, slots].tolist() for row, slots in DOCUMENTS)
    assert sorted(row[row >= 0].tolist() for row in pos) == documents
    for row, slots in DOCUMENTS:
        assert torch.equal(output[row, slots], 2 * difference(x[row : row + 1, slots])[0])
    assert (output[PACKED_POS < 0] == 0).all()
    (gradient,) = torch.autograd.grad(output[1, 4].sum(), x)
    assert gradient.abs().sum(-1).nonzero().tolist() == [[1, 2], [1, 4]]
    assert has_several_documents(PACKED_POS) and not has_several_documents(PACKED_POS[2:])
    assert not has_several_documents(torch.arange(4)[None])


@pytest.mark.parametrize(
    ("pos", "ends"), [(POS, [(0, 3), (1, 3), (0, 0), None]), (None, [(0, 3)] * 4)], ids=["padded", "full"]
)
def test_first_and_last_are_the_ends_of_rows(pos, ends):
    x = torch.randn(4, 4, 3)
    for row, slots, actual in zip(x, ends, first_and_last(x, pos), strict=True):
        assert torch.equal(actual, torch.zeros(6) if slots is None else row[list(slots)].flatten())

import torch

from polyhead.cost.fake_tensors import SavedActivations


def test_saved_tensors_are_counted_once_without_weights():
    model, x = torch.nn.Linear(8, 4), torch.ones(5, 8, requires_grad=True)
    with SavedActivations(model) as saved:
        y = model(x) * 1.0
        (y @ y.T).exp()
    assert saved.nbytes == 4 * (5 * 8 + 5 * 4 + 5 * 5)  # x; y, twice a factor; the result of exp

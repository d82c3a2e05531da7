import pytest

from polyhead.kernels.training import feed_forward as feed_forward_forms
from polyhead.kernels.training import linear_forms


@pytest.fixture(params=["passes", "blocks"])
def form(request, monkeypatch):
    name = request.param
    for module in (feed_forward_forms, linear_forms):
        monkeypatch.setattr(module, "fastest_product", lambda kind, forms, *_: forms[name])
    return name

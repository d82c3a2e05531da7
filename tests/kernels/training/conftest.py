import pytest

from polyhead.kernels.training import blocks


@pytest.fixture(params=["passes", "blocks"])
def form(request, monkeypatch):
    monkeypatch.setattr(blocks, "fastest_product", lambda kind, forms, *_: forms[request.param])
    return request.param

import pytest
from tests.cost.cost_helpers import make_config

from polyhead.cost.fake_tensors import count_flops
from polyhead.cost.flops import count_forward
from polyhead.cost.workload import BatchShape, UnknownFormulaError

PLUGIN = """
from torch import nn
class Wide(nn.Module):
    def __init__(self, d_model, d_ff, *, k: int = 3):
        super().__init__()
        self.a, self.b = nn.Linear(d_model, k * d_ff), nn.Linear(k * d_ff, d_model)
    def forward(self, x, pos=None):
        return self.b(self.a(x).relu())
"""


def test_custom_parts_are_counted_by_fake_tensors(tmp_path, monkeypatch):
    (tmp_path / "cost_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    config, shape = make_config("decoder", {"feed_forward": "cost_plugin:Wide"}), BatchShape(2, 8)
    with pytest.raises(UnknownFormulaError, match="cost_plugin"):
        count_forward(config, shape)
    plain = sum(work.total for work in count_forward(make_config("decoder"), shape))
    # two layers of 4BSHF, three times as wide
    assert count_flops(config, shape) == plain + 2 * (3 - 1) * 4 * 2 * 8 * 16 * 24

"""Tests of cost/workload.py."""

from __future__ import annotations

import pytest
from tests.cost.flops_helpers import config_of

from polyhead.cost.fake_tensors import count_flops
from polyhead.cost.flops import count_forward
from polyhead.cost.workload import BatchShape, UnknownFormulaError


def test_a_part_of_ones_own_is_counted_instead(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_cost.py").write_text(
        "from torch import nn\n"
        "class Wide(nn.Module):\n"
        "    def __init__(self, d_model, d_ff, *, k: int = 3):\n"
        "        super().__init__()\n"
        "        self.a, self.b = nn.Linear(d_model, k * d_ff), nn.Linear(k * d_ff, d_model)\n"
        "    def forward(self, x, pos=None):\n"
        "        return self.b(self.a(x).relu())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = config_of("decoder", {"feed_forward": "my_cost:Wide"})
    with pytest.raises(UnknownFormulaError, match="my_cost"):
        count_forward(config, BatchShape(2, 8))
    plain = sum(work.total for work in count_forward(config_of("decoder", {}), BatchShape(2, 8)))
    assert (
        count_flops(config, BatchShape(2, 8)) == plain + 2 * (3 - 1) * 4 * 2 * 8 * 16 * 24
    )  # two layers of 4BSHF, three times as wide

import pytest
from tests.hf.families import causal_cases, encoders_cases, seq2seq_cases
from tests.hf.families.encoders_cases import BARE, CLASSES, MLM

from polyhead.hf.family import FAMILY


@pytest.mark.parametrize(
    ("model", "cases"),
    [("CausalLM", causal_cases.CASES), ("MaskedLM", encoders_cases.CASES), ("Seq2Seq", seq2seq_cases.CASES)],
)
def test_every_family_has_three_cases(model, cases):
    assert cases.keys() == {name for name in FAMILY.names() if model in FAMILY.get(name).architectures}
    assert all(len(rows) >= 3 for rows in cases.values())
    if model == "MaskedLM":
        assert all({case.auto for case in rows} == {MLM, CLASSES, BARE} for rows in cases.values())

"""Tests of hf/family.py."""

from __future__ import annotations

from tests.hf.families.causal_cases import CASES as FAMILIES_CASES
from tests.hf.families.encoders_cases import BARE, CASES, CLASSES, MLM
from tests.hf.families.seq2seq_cases import CASES as SEQ2SEQ_CASES

from polyhead.hf.family import FAMILY


def test_every_family_of_encoders_has_three_shapes() -> None:
    assert CASES.keys() == {name for name in FAMILY.names() if "MaskedLM" in FAMILY.get(name).architectures}
    assert all(
        len(cases) >= 3 and {case.auto for case in cases} == {MLM, CLASSES, BARE} for cases in CASES.values()
    )


def test_every_family_has_three_shapes() -> None:
    assert FAMILIES_CASES.keys() == {
        name for name in FAMILY.names() if "CausalLM" in FAMILY.get(name).architectures
    }
    assert all(len(cases) >= 3 for cases in FAMILIES_CASES.values())


def test_every_family_of_encoder_decoders_has_three_shapes() -> None:
    assert SEQ2SEQ_CASES.keys() == {
        name for name in FAMILY.names() if "Seq2Seq" in FAMILY.get(name).architectures
    }
    assert all(len(cases) >= 3 for cases in SEQ2SEQ_CASES.values())

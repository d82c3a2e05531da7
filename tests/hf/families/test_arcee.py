from tests.hf.families.causal import CausalFamily


class TestArcee(CausalFamily, names=["arcee"]): ...

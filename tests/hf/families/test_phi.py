from tests.hf.families.causal import CausalFamily


class TestPhi(CausalFamily, names=["phi"]): ...

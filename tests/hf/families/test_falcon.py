from tests.hf.families.causal import CausalFamily


class TestFalcon(CausalFamily, names=["falcon"]): ...

from tests.hf.families.causal import CausalFamily


class TestMpt(CausalFamily, names=["mpt"]): ...

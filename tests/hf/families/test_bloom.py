from tests.hf.families.causal import CausalFamily


class TestBloom(CausalFamily, names=["bloom"]): ...

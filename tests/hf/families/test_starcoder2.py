from tests.hf.families.causal import CausalFamily


class TestStarcoder2(CausalFamily, names=["starcoder2"]): ...

from tests.hf.families.causal import CausalFamily


class TestSmollm3(CausalFamily, names=["smollm3"]): ...

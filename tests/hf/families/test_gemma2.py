from tests.hf.families.causal import CausalFamily


class TestGemma2(CausalFamily, names=["gemma2"]): ...

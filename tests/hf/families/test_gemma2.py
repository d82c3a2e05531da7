from tests.hf.families.causal import CausalFamily


class TestGemma2(CausalFamily, names=["gemma2"]): ...


class TestGemma3(CausalFamily, names=["gemma3_text"]): ...

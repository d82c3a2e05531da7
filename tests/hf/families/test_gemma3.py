from tests.hf.families.causal import CausalFamily


class TestGemma3(CausalFamily, names=["gemma3_text"]): ...

from tests.hf.families.causal import CausalFamily


class TestGemma(CausalFamily, names=["gemma"]): ...

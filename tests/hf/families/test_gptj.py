from tests.hf.families.causal import CausalFamily


class TestGptj(CausalFamily, names=["gptj"]): ...

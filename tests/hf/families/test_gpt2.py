from tests.hf.families.causal import CausalFamily


class TestGpt2(CausalFamily, names=["gpt2"]): ...

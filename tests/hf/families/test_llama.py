from tests.hf.families.causal import CausalFamily


class TestLlama(CausalFamily, names=["llama"]): ...

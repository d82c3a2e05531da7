from tests.hf.families.causal import CausalFamily


class TestOlmo2(CausalFamily, names=["olmo2"]): ...

from tests.hf.families.causal import CausalFamily


class TestErnie45(CausalFamily, names=["ernie4_5"]): ...

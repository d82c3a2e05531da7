from tests.hf.families.causal import CausalFamily


class TestStablelm(CausalFamily, names=["stablelm"]): ...

from tests.hf.families.causal import CausalFamily


class TestGlm(CausalFamily, names=["glm", "glm4"]): ...

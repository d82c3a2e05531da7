from tests.hf.families.encoders import EncoderFamily


class TestDistilbert(EncoderFamily, names=["distilbert"]): ...

from tests.hf.families.seq2seq import Seq2SeqFamily


class TestMbart(Seq2SeqFamily, names=["mbart"]): ...

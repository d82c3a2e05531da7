from tests.train.distributed.rank_runs import corpus_dir as corpus_dir

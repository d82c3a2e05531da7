from polyhead.data.readers.parallel_corpus import open_corpus, read_pairs


def open_parallel(write_file, source, target):
    return open_corpus([write_file("a.en", source), write_file("a.de", target)])


def read_checked(corpus):
    sources, targets, report = read_pairs(corpus)
    assert report.total == report.used + report.empty + report.too_long + report.malformed
    assert report.used == len(sources) == len(targets)
    assert "\n" not in str(report)
    return sources, targets, report

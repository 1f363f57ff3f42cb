"""BLEU and chrF: sacrebleu's own numbers and signatures, and lists that do not fit refused first."""

import subprocess
import sys

import pytest
import sacrebleu
import texting

from regard.tasks.evaluation import bleu, chrf, corpus_scores, scores_by_length

REFERENCES = ["The big dog sleeps .", "Emma sees a cat .", "We sing in the rain and the dogs bark at the moon", "No ."]
HYPOTHESES = ["The big cat sleeps .", "Emma sees the cat .", "we sing in the rain while dogs bark at the moon", "No ."]


@pytest.mark.parametrize(("options", "words"), [
    ({}, ["case:mixed", "tok:13a"]), ({"lowercase": True}, ["case:lc"]), ({"tokenize": "none"}, ["tok:none"]),
    ({"tokenize": "intl"}, ["tok:intl"]),
])
def test_the_numbers_are_those_of_sacrebleu(options, words):
    found = corpus_scores(HYPOTHESES, REFERENCES, **options)
    want = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], force=True, **options)
    assert found.bleu == pytest.approx(want.score)
    assert 10 < found.bleu < 90
    lower = [{True: str.lower, False: str}["lowercase" in options](text) for text in HYPOTHESES + REFERENCES]
    assert found.chrf == pytest.approx(sacrebleu.corpus_chrf(lower[:4], [lower[4:]]).score)
    for word in ("nrefs:1", f"version:{sacrebleu.__version__}", *words):
        assert word in found.bleu_signature
    assert "nc:6" in found.chrf_signature
    assert bleu(HYPOTHESES, REFERENCES, **options) == (found.bleu, found.bleu_signature)


def test_the_command_of_sacrebleu_says_the_same(tmp_path):
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-m", "bleu", "-b", "-w", "6"]
    said = subprocess.run(command, input="\n".join(HYPOTHESES) + "\n", capture_output=True, text=True, timeout=60)
    assert float(said.stdout) == pytest.approx(bleu(HYPOTHESES, REFERENCES).value, abs=1e-5)


def test_unequal_counts_are_refused():
    assert sacrebleu.corpus_bleu(["a b c d", "nothing"], [["a b c d"]]).score == pytest.approx(100)  # what is avoided
    for score in (bleu, chrf, corpus_scores):
        with pytest.raises(ValueError, match="`hypotheses` must be as many as the 1 references, but is 2 of them"):
            score(["a b c d", "nothing"], ["a b c d"])
        with pytest.raises(ValueError, match="`hypotheses` must be at least one text, but is none"):
            score([], [])
        with pytest.raises(ValueError, match="`references` must be a list of texts, but is one text"):
            score(["a"], "a")
    with pytest.raises(ValueError, match="`sources` must be as many as the 2 hypotheses"):
        scores_by_length(["a"], ["a", "b"], ["a", "b"])


def test_no_tokenizer_that_needs_a_network():
    with pytest.raises(ValueError, match=r'`tokenize` must be one of "13a", .* but is "spm"'):
        bleu(["a"], ["a"], tokenize="spm")


def test_scores_by_the_length_of_the_source():
    sources = ["one two", "w " * 10, "w " * 11, "w " * 51, "", "w " * 20]
    texts = [source for source, _ in texting.pairs()[:6]]
    made = [*texts[:2], "nothing alike", *texts[3:]]
    found = scores_by_length(sources, made, texts)
    assert [(bucket.least, bucket.most, bucket.pairs) for bucket in found] == [(0, 10, 3), (11, 20, 2), (51, None, 1)]
    assert found[0].bleu == pytest.approx(100)
    assert found[1].chrf == pytest.approx(chrf([made[2], made[5]], [texts[2], texts[5]]).value)
    assert found[1].bleu < 100
    assert [bucket.pairs for bucket in scores_by_length(sources, made, texts, edges=(2, 4))] == [2, 4]


def test_a_hundred_tokenised_lines_are_not_remarked_upon(caplog):
    bleu(["a b c d ."] * 120, ["a b c d ."] * 120)
    assert caplog.text == ""

"""The phrasebook: a grammar that generates English sentences, French translations and word alignments.

    from regard.data import phrasebook
    for pair in phrasebook.pairs(10_000, split="train"): ...

`pairs` draws pairs, `count_sentences` counts them, `lemmas` lists the words, and `write_pair` makes a pair from a
derivation.

French is a function of English: `you` is always vous; I, you, we and they are masculine; a noun for a person has the
gender of its French word; the past is the passé composé, that of be and of other states the imparfait.

All links are sure links. Two words are linked if one node of the derivation made both:
- a noun, an adjective, an adverb, a name with its translation, wherever it stands; an article with its
  article, `some` with all of de la, any and a with de; a contraction with the links of both its parts (aux: to, the);
- a verb with its verb, and with it a particle (look at, regarder), to before an infinitive, se, and a preposition that
  only French has (obey, obéir à); what carries the tense (did, will, the end of ate) with what carries it in French;
- not, never, no longer, and the do of a negation, with ne and with its second part; the auxiliary that opens a question
  with est-ce que, and with its own translation where it has one;
- `'s` with the article and the de that French has instead; the comparative bigger with both plus and grand; than with
  que; there with il y, ago with il y a;
- a number below a hundred as a whole, hundreds part by part; `and` inside a number is the only word without a link;
- punctuation with punctuation.
"""

from regard.data.phrasebook.derivation import split_of_combination as split_of_combination
from regard.data.phrasebook.generator import count_sentences as count_sentences
from regard.data.phrasebook.generator import pairs as pairs
from regard.data.phrasebook.generator import split_of as split_of
from regard.data.phrasebook.lexicon import Lemma as Lemma
from regard.data.phrasebook.lexicon import lemmas as lemmas
from regard.data.phrasebook.realization import AlignedPair as AlignedPair
from regard.data.phrasebook.realization import write_pair as write_pair

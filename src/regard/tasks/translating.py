"""`Translator`: a model, its tokenizers and its special ids, ready to translate; and where it looked.

Texts are translated in batches of like lengths; what comes of one does not depend on the others. How is searched is a
value, `Beam` or `Sampling`; the calls that make one are in `regard.tasks.translates`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch

from regard import checks
from regard.blocks.packed import packed
from regard.data.doctor.characters import is_blank
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.decoding.cross import with_cross
from regard.decoding.following import Unfollowed
from regard.decoding.forcing import forced
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.rules import Behind, Forbidden, Least, Rule
from regard.decoding.sourcing import encode
from regard.decoding.steady import unchanged
from regard.tasks.alignment.choosing import ENOUGH, Looked, choose
from regard.tasks.alignment.words import Alignment, AlignmentConfig, aligned_words
from regard.tasks.glossary.insisting import Asked, Insisting, Row
from regard.tasks.glossary.spelling import Spelling
from regard.tasks.glossary.terms import Glossary, as_glossary
from regard.tasks.readings import translation
from regard.tasks.results import Translation, best
from regard.tasks.searches import Beam, Problem, Sampling, Search
from regard.tasks.task import Ids, Task, check_lengths, room
from regard.tasks.texts import as_texts, batches, in_batches, which
from regard.tasks.translates import Terms, Translates, for_each

LONGER, FACTOR = 50, 2
"""A translation may have so many tokens more than this many times its source, where no limit is given; fewer where the
model has fewer positions."""


class Translator(Task, Translates):
    """An encoder-decoder that translates."""

    reads = PairTokenizer
    aligns = True

    def searched(self, texts: Sequence[str], search: Search, *, prefix: str | Sequence[str] = "",
                 glossary: Terms | None = None) -> list[Translation]:
        """What a search finds for each text, in their order."""
        given = as_texts("texts", texts)
        results = self.candidates(given, search, prefix=prefix, glossary=glossary)
        self.tell_of(given, results)
        return results

    def candidates(self, texts: Sequence[str], search: Search, *, prefix: str | Sequence[str] = "",
                   glossary: Terms | None = None) -> list[Translation]:
        """As `searched`, and nobody is told."""
        given, both = as_texts("texts", texts), self.pair_tokenizer()
        self.check(search, prefix=prefix, glossary=glossary)
        sources, beginnings = both.source_ids(given), both.target_ids(for_each(prefix, given))
        check_lengths("texts", sources, room(self.model.encoder))
        most = self._most(search)
        for number, ids in enumerate(beginnings):
            check_beginning(ids, most, which(number, given))
        known = Glossary({}) if glossary is None else as_glossary(glossary)
        full = [number for number, text in enumerate(given) if not is_blank(text)]
        asked = [Asked(given[number], sources[number], beginnings[number], known.found(given[number]))
                 for number in full]
        found = in_batches(asked, [len(one.source) * search.rows for one in asked],
                           lambda some: self._found(some, search))
        results = [Translation("", 0.0, (), False, look=self._look(text)) for text in given]
        for number, hypotheses in zip(full, found, strict=True):
            look = results[number].look
            results[number] = best([replace(_translation(both.target, one), look=look) for one in hypotheses])
        return results

    def tell_of(self, texts: Sequence[str], results: Sequence[Translation]) -> None:
        """Tell whoever watches what was read and written; of blank texts there is nothing to tell."""
        self.tell(lambda: (translation(self, text, self.pair_tokenizer().source_ids([text])[0], one, self.start())
                           for text, one in zip(texts, results, strict=True) if not is_blank(text)))

    def check(self, search: Search, *, prefix: str | Sequence[str] = "", glossary: Terms | None = None) -> None:
        """Refuse what no model can do."""
        if not isinstance(search, Search):
            raise checks.wrong("search", "a Beam, or a Sampling", *checks.kind(search))
        if glossary is not None and isinstance(search, Sampling):
            raise checks.wrong("glossary", "left out, where translations are drawn", "given",
                               "Beam search keeps to a glossary.")
        positions = room(self.model.decoder)
        for name, count in (("limit", search.limit or 0), ("least", search.least)):
            if positions is not None and count > positions - 1:  # the start has a position too
                raise checks.wrong(name, f"at most {positions - 1}, the positions that the model has for it", count)
        if isinstance(search, Beam) and search.coverage is not None and not self.attends:
            raise checks.wrong("coverage", "None for a model that does not look at its source", repr(search.coverage))
        if glossary is not None:
            as_glossary(glossary)

    def translate_ids(self, sources: Ids, *, beams: int = 1, nbest: int = 1, limit: int | None = None,
                      length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each source its `nbest` translations, the best first; at most `limit` tokens each.

        Without a limit it follows from the length of the source, and from the positions that the model knows. A source
        is as the model was trained with: of text, what `PairTokenizer.source_ids` gives.
        """
        search = Beam(beams=beams, nbest=nbest, limit=limit, length_penalty=length_penalty)
        found = self._hypotheses([Row(source) for source in sources], search)
        self.tell(lambda: (translation(self, None, source, some[0], self.start())
                           for source, some in zip(sources, found, strict=True)))
        return found

    def _found(self, asked: Sequence[Asked], search: Search) -> list[list[Hypothesis]]:
        """What a search finds for each text; with all terms where some must appear."""
        if not any(one.required for one in asked):
            return self._hypotheses([Row(one.source, one.beginning) for one in asked], search)
        assert isinstance(search, Beam)
        look = partial(self._alignments, layer=None) if self.attends else None
        return Insisting(self._hypotheses, look, self.spelling, partial(self._room, search=search)).found(asked, search)

    @torch.inference_mode()
    def _hypotheses(self, rows: Sequence[Row], search: Search) -> list[list[Hypothesis]]:
        """What a search finds for each row."""
        with unchanged(self.model):
            return self._searched(rows, search)

    def _searched(self, rows: Sequence[Row], search: Search) -> list[list[Hypothesis]]:
        sources = [row.source for row in rows]
        with packed(self.model):
            memory = encode(self.model, self.tokens(sources))
        rules, begun = self._rules(), [row.beginning for row in rows]
        limits = [self._room(row, search) for row in rows]
        if any(row.words for row in rows):
            rules.append(Behind(Unfollowed([row.words for row in rows], self.spelling.joining), begun))
        if any(begun):  # the search itself counts what is behind
            rules += [Behind(one, begun) for one in (Least(search.least, self.end()), *search.rules())]
            search = replace(search, least=0, no_repeat=None)
        terms = [row.terms for row in rows] if any(row.terms for row in rows) else None
        prompts = [[self.start(), *row.beginning] for row in rows]
        found = search.run(Problem(self.model, memory, sources, prompts, self.end(), limits, rules, terms))
        if not any(begun):
            return found
        given = forced(self.model, memory, [prompt[:1] for prompt in prompts], begun)  # type: ignore[arg-type]
        return [[replace(one, ids=[*row.beginning, *one.ids], log_probabilities=[*logs, *one.log_probabilities])
                 for one in some] for row, logs, some in zip(rows, given, found, strict=True)]

    def aligned(self, text: str, translation: str | None = None, *, layer: int | None = None) -> Alignment:
        """Which words of a text the model looks at for each word of its translation, read once more.

        Args:
            translation: another one than that which the model finds itself.
            layer: of the decoder, from 0, and the mean over its heads; without it what `aligned_by` says, or where that
                says nothing the layer that points most clearly in each sentence.
        """
        if not isinstance(text, str):
            raise checks.wrong("text", "a text", *checks.kind(text))
        ids = self.translate(text).ids if translation is None else self.pair_tokenizer().target_ids([translation])[0]
        return self._aligned([(text, ids)], layer)[0]

    def align(self, texts: Sequence[str], translations: Sequence[Translation], *,
              layer: int | None = None) -> list[Alignment]:
        """As `aligned`, for several texts and what `translate` gave for each: the very tokens that were written."""
        given = as_texts("texts", texts)
        if isinstance(translations, Translation) or len(translations) != len(given):
            raise checks.wrong("translations", f"one for each text, {len(given):,}",
                               "one" if isinstance(translations, Translation) else f"{len(translations):,}")
        for number, one in enumerate(translations):
            if not isinstance(one, Translation):
                raise checks.wrong("translations", "what `translate` gave", f"{checks.kind(one)[0]} at {number}",
                                   "`aligned` takes a translation of text.")
        return self._aligned([(text, one.ids) for text, one in zip(given, translations, strict=True)], layer)

    @property
    def attends(self) -> bool:
        """Whether the model looks at its source, word by word; a recurrent one may have one vector of all of it."""
        return getattr(self.config, "attention", True) is not None

    def choose_alignment(self, pairs: Sequence[tuple[str, str]]) -> AlignmentConfig:
        """Where to read which words belong together, from pairs (text, translation) that nobody has aligned.

            translator.aligned_by = translator.choose_alignment(pairs)     # `save` keeps it

        A training has done that. Some hundred pairs will do, and no more than `aligning.ENOUGH` are read.
        """
        some, both = list(pairs)[:ENOUGH], self.pair_tokenizer()
        for number, pair in enumerate(some):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
                raise checks.wrong("pairs", "pairs of texts, (text, translation)", f"{pair!r:.80} at {number}")
        targets = both.target_ids([translation for _, translation in some])
        rows = [(text, ids) for (text, _), ids in zip(some, targets, strict=True)]
        lengths = self._lengths(rows, "pairs", "pairs")
        return choose(look for numbers in batches(lengths) for look in self._looked([rows[one] for one in numbers]))

    def _aligned(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        """Of any number of texts and the ids of their translations."""
        return in_batches(pairs, self._lengths(pairs, "texts", "translations"),
                          lambda some: self._alignments(some, layer))

    def _lengths(self, pairs: Sequence[tuple[str, Sequence[int]]], *arguments: str) -> list[int]:
        """How long texts and their translations are; what is too long is refused by the names of the arguments."""
        sources = self.pair_tokenizer().source_ids([text for text, _ in pairs])
        targets = [[self.start(), *ids] for _, ids in pairs]
        for argument, rows, part in zip(arguments, (sources, targets), (self.model.encoder, self.model.decoder),
                                        strict=True):
            check_lengths(argument, rows, room(part))
        return [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]

    def _alignments(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        """Of so many as are read together."""
        where = self.aligned_by if layer is None else AlignmentConfig(layer=layer)
        rounds = 1 if where is None else where.rounds
        return [Alignment.of(*look[1:], aligned_words(look.cross, look.source, look.target, where), rounds)
                for look in self._looked(pairs)]

    @torch.inference_mode()
    def _looked(self, pairs: Sequence[tuple[str, Sequence[int]]]) -> list[Looked]:
        """What is looked at while the translations of texts are read; of each the step behind its last token too."""
        both = self.pair_tokenizer()
        memory = self.model.encode(self.tokens(both.source_ids([text for text, _ in pairs])))  # type: ignore[operator]
        written = [Hypothesis(list(ids), [0.0] * (len(ids) + 1), 0.0, None) for _, ids in pairs]
        read = with_cross(self.model, memory, written, prompts=[[self.start()]] * len(pairs))  # type: ignore[arg-type]
        found = []
        for (text, _), one in zip(pairs, read, strict=True):
            assert one.cross is not None
            found.append(Looked(one.cross.float().cpu(), text, both.source.words(text), both.target.decode(one.ids),
                                both.target.decoded_words(one.ids)))
        return found

    def pair_tokenizer(self) -> PairTokenizer:
        """The tokenizers of source and target; a ValueError where there are none."""
        tokenizer = self.needed()
        assert isinstance(tokenizer, PairTokenizer)
        return tokenizer

    def start(self) -> int:
        """The id that a translation begins with."""
        if self.special.start is None:
            raise checks.wrong("special.start", "an id, for a model that translates", None)
        return self.special.start

    @cached_property
    def spelling(self) -> Spelling:
        """How words are written in the tokens of translations."""
        return Spelling(self.pair_tokenizer().target)

    def _most(self, search: Search) -> int | None:
        """How many tokens a translation may have at most."""
        positions = room(self.model.decoder)
        known = [one for one in (search.limit, None if positions is None else positions - 1) if one is not None]
        return min(known, default=None)

    def _room(self, row: Row, search: Search) -> int:
        """How many tokens may be written behind the beginning of a row."""
        if search.limit is not None:
            return search.limit - len(row.beginning)
        usual, positions = max(FACTOR * len(row.source) + LONGER, search.least), room(self.model.decoder)
        return usual if positions is None else min(usual, positions - 1 - len(row.beginning))  # the start has one too

    def _rules(self) -> list[Rule]:
        """Padding is never written: no target has it, so that nothing was learned of when it would be right."""
        padding, vocabulary = self.special.padding, self.vocabularies[-1]
        never = [] if self.tokenizer is None else no_tokens(self.pair_tokenizer().target, vocabulary)
        if padding is not None and padding not in self.special.end and padding < vocabulary:  # else of the source alone
            never.append(padding)
        return [Forbidden(never)] if never else []

    def _look(self, text: str) -> Callable[[Translation], Alignment]:
        return lambda translation: self.align([text], [translation])[0]


def no_tokens(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """The ids of the model that are no token: some models have more than their tokenizer, for speed."""
    return list(range(tokenizer.size, vocabulary))


def _translation(tokenizer: Tokenizer, found: Hypothesis) -> Translation:
    return Translation(tokenizer.decode(found.ids), found.score, tuple(found.ids), found.cut,
                       log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer)


def check_beginning(ids: Sequence[int], limit: int | None, where: str) -> None:
    """Refuse a prefix that the model has no room for."""
    if limit is not None and len(ids) > limit:
        raise checks.wrong("prefix", f"at most {limit} tokens long, as translations are", f"{len(ids)} tokens{where}")

"""How a noun is written with what belongs to it: determiner, adjectives, owner, relative clause.

Here French agrees: determiner and adjectives with the gender and the number of the noun. Links: an article with its
article; every adjective with its adjective, also where it changes sides; `'s` with both the article and the `de` that
French has instead; who and that with qui and que.
"""

from regard.data.phrasebook import groups
from regard.data.phrasebook.english import article
from regard.data.phrasebook.groups import Agreement
from regard.data.phrasebook.pair import Page
from regard.data.phrasebook.tree import Nominal, ObjectRelative, Relative, Subject
from regard.data.phrasebook.words import Adjective, Count, Determiner, Name, Pronoun, vowel

DEFINITE = ("le", "la", "les", "les")


def agreement(subject: Subject) -> Agreement:
    """Person, gender and number; of two, masculine unless both are feminine."""
    if isinstance(subject, Nominal):
        return Agreement(5, subject.noun.feminine + 2) if subject.plural else Agreement(2, int(subject.noun.feminine))
    if isinstance(subject, Pronoun):
        return Agreement(subject.person, subject.feminine + 2 * (subject.person > 2))
    if isinstance(subject, Name):
        return Agreement(2, int(subject.feminine))
    return Agreement(5, 2 + (subject.first.feminine and subject.second.noun.feminine))


def write(page: Page, phrase: Subject, denied: int = 0) -> None:
    """Any phrase; under a negation (`denied`, 1 or 0) an indefinite article is `any`, and de."""
    if isinstance(phrase, Nominal):
        _nominal(page, phrase, denied)
    elif isinstance(phrase, Name):
        page.word(phrase.lemma, phrase.lemma)
    elif isinstance(phrase, Pronoun):
        page.word(phrase.english, phrase.french)
    else:
        page.word(phrase.first.lemma, phrase.first.lemma)
        page.word("and", "et")
        _nominal(page, phrase.second, denied)


def _nominal(page: Page, phrase: Nominal, denied: int) -> None:
    determiner, noun, before, after, owner, relative = phrase
    english, french = page.english, page.french
    plural = determiner.plural
    forms = noun.feminine + 2 * plural
    head = noun.french[plural]
    ahead = _before(before, forms, head) if before else head
    owned = 0
    tail: list[tuple[str, int]] = []
    if owner:
        start = len(french)
        write(page, owner)
        tail = french[start:]
        del french[start:]
        owned = page.mark()
        plural_s = isinstance(owner, Nominal) and owner.plural and owner.noun.english[1].endswith("s")
        english.append(("'" if plural_s else "'s", owned))
        french.append((DEFINITE[forms], owned))
    elif isinstance(determiner, Count):
        page.fixed(determiner.feminine if noun.feminine else determiner.masculine)
    else:
        first = before or after
        _determiner(page, determiner, forms, ahead, first.lemma if first else noun.english[plural], before, denied)
    if before:
        page.word(before.lemma, ahead)
    bit = page.mark()
    french.append((head, bit))
    if after:
        page.word(after.lemma, after.french[forms])
    english.append((noun.english[plural], bit))
    if owned:
        french.append(("de", owned))
        french += tail
    if relative:
        _relative(page, phrase, relative, forms)


def _before(adjective: Adjective, forms: int, head: str) -> str:
    """The form of an adjective that the noun `head` follows: un bel homme."""
    return adjective.liaison if forms == 0 and vowel(head) else adjective.french[forms]


def _determiner(page: Page, determiner: Determiner, forms: int, ahead: str, following: str,
                before: Adjective | None, denied: int) -> None:
    """`ahead` and `following` are the next words, French and English."""
    english = determiner.english
    french = determiner.french[(forms & 1) + 2 * vowel(ahead)]
    if determiner.indefinite:
        if denied or (before and determiner.plural):
            french = ("de",)
        if english[0] == "a":
            english = (article(following),)
        elif denied:
            english = ("any",)
    if len(english) == len(french):
        for pair in zip(english, french, strict=True):
            page.word(*pair)
    else:
        bit = page.mark()
        page.english += [(word, bit) for word in english]
        page.french += [(word, bit) for word in french]


def _relative(page: Page, head: Nominal, relative: Relative | ObjectRelative, forms: int) -> None:
    verb, tense, middle, other = relative
    denied = int(middle is not None and middle.negative)
    if isinstance(relative, Relative):
        page.word("who" if head.noun.kind == "P" else "that", "qui")
        group = groups.action(page, agreement(head), verb, tense, None, middle,
                              asked=0, clitic=None, object_before=None)
        _put(page, group)
        if other:
            write(page, other, denied)
    else:
        page.word("that", "que")
        assert other is not None
        group = groups.action(page, agreement(other), verb, tense, None, middle,
                              asked=0, clitic=None, object_before=forms)
        write(page, other)
        _put(page, group)


def _put(page: Page, group: groups.Group) -> None:
    page.english += group.auxiliary
    page.english += group.english
    page.french += group.french

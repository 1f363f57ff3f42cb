"""How a verb is written with its auxiliaries: do, will, be and modals; avoir and être; what negation puts around them.

A group is three runs of words: the English auxiliary, which a question moves before its subject, the rest of the
English, and the French. Nouns are written elsewhere. Links: a verb with its verb, and so is its particle (look at,
regarder), `to` and se; what carries the tense (did, will, the end of ate) with what carries it in French; both parts of
a French negation with not, never, no longer, and with the do that it brings.
"""

from functools import cache
from typing import NamedTuple

from regard.data.phrasebook.conjugation import conjugate
from regard.data.phrasebook.lexicon import Middle
from regard.data.phrasebook.pair import Page
from regard.data.phrasebook.tree import FUTURE, PAST, PRESENT
from regard.data.phrasebook.words import Conjugation, Modal, Verb

REFLEXIVE = ("me", "te", "se", "nous", "vous", "se")
BE = {PRESENT: ("am", "are", "is", "are", "are", "are"), PAST: ("was", "were", "was", "were", "were", "were")}

Words = list[tuple[str, int]]


@cache
def avoir() -> Conjugation:
    return conjugate("avoir")


@cache
def etre() -> Conjugation:
    return conjugate("être")


class Agreement(NamedTuple):
    """What a verb must know of its subject: the person, 0 to 5, and gender and number as an index into four forms."""

    person: int
    forms: int


class Group(NamedTuple):
    """A written verb."""

    auxiliary: Words
    english: Words
    french: Words


def action(page: Page, who: Agreement, verb: Verb, tense: str, modal: Modal | None, middle: Middle | None, *,
           asked: int, clitic: tuple[str, int] | None, object_before: int | None) -> Group:
    """A verb that does something.

    `asked` is the bit of the question, or 0. `clitic` is a written object pronoun. `object_before` is the gender and
    number of an object that stands before the verb, with which the participle then agrees.
    """
    bits = (page.mark(), page.mark(), page.mark())
    auxiliary, english = _english_action(who, verb, tense, modal, middle, asked, bits)
    meant, shift, around = bits
    clitics: Words = [clitic] if clitic else []
    moving = "moves" in verb.flags
    if "reflexive" in verb.flags:
        moving = True
        clitics.append((REFLEXIVE[who.person], meant))
    forms = verb.french
    french: Words = [("ne", around)] if middle and middle.negative else []
    if modal:
        french.append((modal.french.present[who.person], shift))
        _inside(french, middle, around)
        french += clitics
        french.append((forms.infinitive, meant))
    else:
        french += clitics
        if tense == PAST and "lasts" not in verb.flags:
            french.append(((etre() if moving else avoir()).present[who.person], shift))
            _inside(french, middle, around)
            agreed = who.forms if moving else object_before or 0
            french.append((forms.participle[agreed], meant))
        else:
            french.append((_finite(forms, tense)[who.person], meant if tense == PRESENT else meant | shift))
            _inside(french, middle, around)
    if verb.preposition:
        bit = page.mark() if verb.particle else meant
        french.append((verb.preposition, bit))
        if verb.particle:
            english.append((verb.particle, bit))
    elif verb.particle:
        english.append((verb.particle, meant))
    return Group(auxiliary, english, french)


def _english_action(who: Agreement, verb: Verb, tense: str, modal: Modal | None, middle: Middle | None,
                    asked: int, bits: tuple[int, int, int]) -> tuple[Words, Words]:
    """The auxiliary, and the rest without a particle."""
    meant, shift, around = bits
    third = who.person == 2
    denied = middle is not None and middle.english[0] == "not"
    auxiliary: Words
    if tense == FUTURE:
        auxiliary, main = [("will", shift | asked)], [(verb.base, meant)]
    elif modal and not modal.infinitive:
        if denied and modal.negative:
            return [(modal.negative, shift | around)], [(verb.base, meant)]
        auxiliary, main = [(modal.lemma, shift | asked)], [(verb.base, meant)]
    else:
        helped = denied or bool(asked)
        does = "did" if tense == PAST else "does" if third else "do"
        carried = asked | (around if denied else 0) | (shift if tense == PAST else 0)
        auxiliary = [(does, carried)] if helped else []
        if modal:
            main = [(modal.third if third and not helped else modal.lemma, shift)]
            main += [(word, meant) for word in modal.infinitive]
            main.append((verb.base, meant))
        elif helped:
            main = [(verb.base, meant)]
        elif tense == PAST:
            main = [(verb.past, meant | shift)]
        else:
            main = [(verb.third if third else verb.base, meant)]
    return auxiliary, ([(word, around) for word in middle.english] if middle else []) + main


def being(page: Page, who: Agreement, tense: str, middle: Middle | None, asked: int) -> Group:
    """`is`, `was`, `will be`: est, était, sera."""
    be, shift, around = page.mark(), page.mark(), page.mark()
    auxiliary, english = _english_being(who, tense, middle, asked, (be, shift, around))
    french: Words = [("ne", around)] if middle and middle.negative else []
    french.append((_finite(etre(), tense)[who.person], be | shift))
    _inside(french, middle, around)
    return Group(auxiliary, english, french)


def suffering(page: Page, who: Agreement, verb: Verb, tense: str, middle: Middle | None, asked: int) -> Group:
    """The passive: `is eaten`, est mangé; `was eaten`, a été mangé."""
    be, shift, around, meant = page.mark(), page.mark(), page.mark(), page.mark()
    auxiliary, english = _english_being(who, tense, middle, asked, (be, shift, around))
    english.append((verb.participle, meant))
    if verb.particle:
        english.append((verb.particle, meant))
    french: Words = [("ne", around)] if middle and middle.negative else []
    if tense == PAST:
        french.append((avoir().present[who.person], be))
        _inside(french, middle, around)
        french.append((etre().participle[0], be))
    else:
        french.append((_finite(etre(), tense)[who.person], be | shift))
        _inside(french, middle, around)
    french.append((verb.french.participle[who.forms], meant))
    return Group(auxiliary, english, french)


def _english_being(who: Agreement, tense: str, middle: Middle | None, asked: int,
                   bits: tuple[int, int, int]) -> tuple[Words, Words]:
    be, shift, around = bits
    english: Words = [(word, around) for word in middle.english] if middle else []
    if tense == FUTURE:
        return [("will", shift | asked)], [*english, ("be", be)]
    return [(BE[tense][who.person], be | asked)], english


def _finite(forms: Conjugation, tense: str) -> tuple[str, ...]:
    """The forms in one word; the past in one word is the imparfait."""
    return forms.present if tense == PRESENT else forms.future if tense == FUTURE else forms.imperfect


def _inside(french: Words, middle: Middle | None, bit: int) -> None:
    """After the finite verb: pas, jamais, plus, souvent."""
    if middle:
        french.append((middle.french, bit))

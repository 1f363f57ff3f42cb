"""Written sentences: agreement, order, elision, contraction, and alignments."""

import itertools
import random

import pytest

from regard.data import phrasebook
from regard.data.phrasebook import grammar
from regard.data.phrasebook.derivation import (
    ActionPredicate,
    AdjectivePredicate,
    AgoPhrase,
    CompanyPhrase,
    ComparisonPredicate,
    Coordination,
    DatePhrase,
    ExistencePredicate,
    HencePhrase,
    ObjectRelative,
    PassivePredicate,
    PlacePhrase,
    Sentence,
    SubjectRelative,
)
from regard.data.phrasebook.generator import RandomChooser
from regard.data.phrasebook.grammar import EQUAL_WEIGHTS, GrammarTables
from regard.data.phrasebook.lexicon import number_word
from regard.data.phrasebook.realization import ClauseText, join_clauses, write_pair


def do(w, verb, tense="present", thing=None, **more):
    modal = more.pop("modal", None)
    to = more.pop("to", None)
    thing = w.subject(thing) if thing is not None else None
    return ActionPredicate(w.verbs[verb], tense, w.modals[modal] if modal else None, thing,
                           w.subject(to) if to else None)


def be(w, adjective, tense="present", degree=None):
    return AdjectivePredicate(w.adjectives[adjective], tense, w.degrees[degree] if degree else None)


def suffer(w, verb, tense, agent):
    return PassivePredicate(w.verbs[verb], tense, w.subject(agent))


def than(w, comparison, adjective, other):
    return ComparisonPredicate(w.adjectives[adjective], "present", w.comparisons[comparison], w.phrase(other))


def at(w, preposition, phrase):
    return PlacePhrase(w.prepositions[preposition], w.phrase(phrase))


GOLDEN = [
    (lambda w: w.sentence("the man", do(w, "sleep")),
     "The man sleeps.", "L'homme dort.",
     "The/a man/b sleeps/c ./d", "L'/a homme/b dort/c ./d"),
    (lambda w: w.sentence("the big dog", do(w, "eat", thing="a red apple")),
     "The big dog eats a red apple.", "Le grand chien mange une pomme rouge.",
     "The/a big/b dog/c eats/d a/e red/f apple/g ./h", "Le/a grand/b chien/c mange/d une/e pomme/g rouge/f ./h"),
    (lambda w: w.sentence("the woman", do(w, "see", "past", "the old man"), "not"),
     "The woman did not see the old man.", "La femme n'a pas vu le vieil homme.",
     "The/a woman/b did/cd not/c see/e the/f old/g man/h ./i",
     "La/a femme/b n'/c a/d pas/c vu/e le/f vieil/g homme/h ./i"),
    (lambda w: w.sentence("he", do(w, "have", thing="a dog"), "not"),
     "He does not have a dog.", "Il n'a pas de chien.",
     "He/a does/b not/b have/c a/d dog/e ./f", "Il/a n'/b a/c pas/b de/d chien/e ./f"),
    (lambda w: w.sentence("she", do(w, "eat", thing="some apple"), "not"),
     "She does not eat any apples.", "Elle ne mange pas de pommes.",
     "She/a does/b not/b eat/c any/d apples/e ./f", "Elle/a ne/b mange/c pas/b de/d pommes/e ./f"),
    (lambda w: w.sentence("I", do(w, "give", "future", "the+ book", to="the+ child")),
     "I will give the books to the children.", "Je donnerai les livres aux enfants.",
     "I/a will/b give/c the/d books/e to/f the/g children/h ./i",
     "Je/a donnerai/bc les/d livres/e aux/fg enfants/h ./i"),
    (lambda w: w.sentence(w.phrase("the castle", owner=w.phrase("the king")), be(w, "beautiful")),
     "The king's castle is beautiful.", "Le château du roi est beau.",
     "The/a king/b 's/c castle/d is/e beautiful/f ./g", "Le/c château/d du/ac roi/b est/e beau/f ./g"),
    (lambda w: w.sentence(w.phrase("the cat", owner=w.phrase("the+ girl")), do(w, "sleep")),
     "The girls' cat sleeps.", "Le chat des filles dort.",
     "The/a girls/b '/c cat/d sleeps/e ./f", "Le/c chat/d des/ac filles/b dort/e ./f"),
    (lambda w: w.sentence("the+ apple", suffer(w, "eat", "past", "the+ horse")),
     "The apples were eaten by the horses.", "Les pommes ont été mangées par les chevaux.",
     "The/a apples/b were/c eaten/d by/e the/f horses/g ./h",
     "Les/a pommes/b ont/c été/c mangées/d par/e les/f chevaux/g ./h"),
    (lambda w: w.sentence("my sister", do(w, "arrive", "past"), front=w.times["yesterday"]),
     "Yesterday, my sister arrived.", "Hier, ma sœur est arrivée.",
     "Yesterday/a ,/b my/c sister/d arrived/e ./f", "Hier/a ,/b ma/c sœur/d est/e arrivée/e ./f"),
    (lambda w: w.sentence("they", do(w, "leave", "past"), front=DatePhrase(1, w.months["May"], 1998)),
     "On 1 May 1998, they left.", "Le premier mai 1998, ils sont partis.",
     "On/a 1/b May/c 1998/d ,/e they/f left/g ./h", "Le/a premier/b mai/c 1998/d ,/e ils/f sont/g partis/g ./h"),
    (lambda w: w.sentence("21 orange", ExistencePredicate("present"), where=at(w, "on", "the table")),
     "There are twenty-one oranges on the table.", "Il y a vingt et une oranges sur la table.",
     "There/a are/b twenty-one/c oranges/d on/e the/f table/g ./h",
     "Il/a y/a a/b vingt/c et/c une/c oranges/d sur/e la/f table/g ./h"),
    (lambda w: w.sentence("the queen", do(w, "drink", thing="some water"), asked=True),
     "Does the queen drink some water?", "Est-ce que la reine boit de l'eau ?",
     "Does/a the/b queen/c drink/d some/e water/f ?/g", "Est-ce/a que/a la/b reine/c boit/d de/e l'/e eau/f ?/g"),
    (lambda w: w.sentence(
        w.phrase("the letter", relative=ObjectRelative(w.verbs["write"], "past", None, w.pronouns["she"])),
        suffer(w, "find", "past", "Paul")),
     "The letter that she wrote was found by Paul.", "La lettre qu'elle a écrite a été trouvée par Paul.",
     "The/a letter/b that/c she/d wrote/e was/f found/g by/h Paul/i ./j",
     "La/a lettre/b qu'/c elle/d a/e écrite/e a/f été/f trouvée/g par/h Paul/i ./j"),
    (lambda w: w.sentence(
        w.phrase("the man", relative=SubjectRelative(w.verbs["look at"], "present", None, w.phrase("the star"))),
        do(w, "sleep")),
     "The man who looks at the star sleeps.", "L'homme qui regarde l'étoile dort.",
     "The/a man/b who/c looks/d at/d the/e star/f sleeps/g ./h",
     "L'/a homme/b qui/c regarde/d l'/e étoile/f dort/g ./h"),
    (lambda w: w.sentence("he", do(w, "see", "past", "she")),
     "He saw her.", "Il l'a vue.", "He/a saw/b her/c ./d", "Il/a l'/c a/b vue/b ./d"),
    (lambda w: w.sentence("we", do(w, "wait for", "future", "they"), "not"),
     "We will not wait for them.", "Nous ne les attendrons pas.",
     "We/a will/b not/c wait/d for/d them/e ./f", "Nous/a ne/c les/e attendrons/bd pas/c ./f"),
    (lambda w: w.sentence(Coordination(w.names["Paul"], w.phrase("my aunt")), do(w, "arrive", "past")),
     "Paul and my aunt arrived.", "Paul et ma tante sont arrivés.",
     "Paul/a and/b my/c aunt/d arrived/e ./f", "Paul/a et/b ma/c tante/d sont/e arrivés/e ./f"),
    (lambda w: w.sentence(Coordination(w.names["Alice"], w.phrase("my aunt")), do(w, "fall asleep", "past")),
     "Alice and my aunt fell asleep.", "Alice et ma tante se sont endormies.",
     "Alice/a and/b my/c aunt/d fell/eg asleep/e ./f", "Alice/a et/b ma/c tante/d se/e sont/g endormies/e ./f"),
    (lambda w: w.sentence("the mouse", than(w, "more", "small", "the elephant")),
     "The mouse is smaller than the elephant.", "La souris est plus petite que l'éléphant.",
     "The/a mouse/b is/c smaller/d than/e the/f elephant/g ./h",
     "La/a souris/b est/c plus/d petite/d que/e l'/f éléphant/g ./h"),
    (lambda w: w.sentence("these song", than(w, "as", "beautiful", "this opera")),
     "These songs are as beautiful as this opera.", "Ces chansons sont aussi belles que cet opéra.",
     "These/a songs/b are/c as/d beautiful/e as/f this/g opera/h ./i",
     "Ces/a chansons/b sont/c aussi/d belles/e que/f cet/g opéra/h ./i"),
    (lambda w: w.sentence("the hero", do(w, "open", thing="the old cupboard", modal="can"), "not"),
     "The hero cannot open the old cupboard.", "Le héros ne peut pas ouvrir la vieille armoire.",
     "The/a hero/b cannot/cd open/e the/f old/g cupboard/h ./i",
     "Le/a héros/b ne/d peut/c pas/d ouvrir/e la/f vieille/g armoire/h ./i"),
    (lambda w: w.sentence("I", do(w, "go to", thing="the market", modal="want"), where=CompanyPhrase(w.names["Marie"])),
     "I want to go to the market with Marie.", "Je veux aller au marché avec Marie.",
     "I/a want/b to/c go/c to/d the/e market/f with/g Marie/h ./i",
     "Je/a veux/b aller/c au/de marché/f avec/g Marie/h ./i"),
    (lambda w: w.sentence("they", do(w, "talk about", thing="the problem"), "no longer"),
     "They no longer talk about the problem.", "Ils ne parlent plus du problème.",
     "They/a no/b longer/b talk/c about/d the/e problem/f ./g", "Ils/a ne/b parlent/c plus/b du/de problème/f ./g"),
    (lambda w: w.sentence("Alice", do(w, "get up"), last=w.times["at noon"]),
     "Alice gets up at noon.", "Alice se lève à midi.",
     "Alice/a gets/b up/b at/c noon/d ./e", "Alice/a se/b lève/b à/c midi/d ./e"),
    (lambda w: w.sentence(w.phrase("the wife", owner=w.phrase("my friend")), do(w, "play", thing="the piano"), "never"),
     "My friend's wife never plays the piano.", "L'épouse de mon ami ne joue jamais du piano.",
     "My/a friend/b 's/c wife/d never/e plays/f the/g piano/h ./i",
     "L'/c épouse/d de/c mon/a ami/b ne/e joue/f jamais/e du/fg piano/h ./i"),
    (lambda w: w.sentence("some beautiful white horse", do(w, "run")),
     "Some beautiful white horses run.", "De beaux chevaux blancs courent.",
     "Some/a beautiful/b white/c horses/d run/e ./f", "De/a beaux/b chevaux/d blancs/c courent/e ./f"),
    (lambda w: w.sentence("all_the French nurse", do(w, "work"), where=w.cities["in Geneva"]),
     "All the French nurses work in Geneva.", "Toutes les infirmières françaises travaillent à Genève.",
     "All/a the/b French/c nurses/d work/e in/f Geneva/g ./h",
     "Toutes/a les/b infirmières/d françaises/c travaillent/e à/f Genève/g ./h"),
    (lambda w: w.sentence("you", do(w, "come back", "past"), asked=True, question=w.questions["why"]),
     "Why did you come back?", "Pourquoi est-ce que vous êtes revenus ?",
     "Why/a did/bc you/d come/e back/e ?/f", "Pourquoi/a est-ce/b que/b vous/d êtes/c revenus/e ?/f"),
    (lambda w: w.sentence("many owl", ExistencePredicate("past"), where=at(w, "near", "the house")),
     "There were many owls near the house.", "Il y avait beaucoup de hiboux près de la maison.",
     "There/a were/b many/c owls/d near/e the/f house/g ./h",
     "Il/a y/a avait/b beaucoup/c de/c hiboux/d près/e de/e la/f maison/g ./h"),
    (lambda w: w.sentence("99 soldier", do(w, "cross", "past", "the forest")),
     "Ninety-nine soldiers crossed the forest.", "Quatre-vingt-dix-neuf soldats ont traversé la forêt.",
     "Ninety-nine/a soldiers/b crossed/c the/d forest/e ./f",
     "Quatre-vingt-dix-neuf/a soldats/b ont/c traversé/c la/d forêt/e ./f"),
    (lambda w: w.sentence("201 woman", do(w, "dance", "past")),
     "Two hundred and one women danced.", "Deux cent une femmes ont dansé.",
     "Two/a hundred/b and/- one/c women/d danced/e ./f", "Deux/a cent/b une/c femmes/d ont/e dansé/e ./f"),
    (lambda w: w.sentence("the new hotel", suffer(w, "destroy", "past", "the king"),
                          front=AgoPhrase(number_word(3), w.units["day"])),
     "Three days ago, the new hotel was destroyed by the king.",
     "Il y a trois jours, le nouvel hôtel a été détruit par le roi.",
     "Three/a days/b ago/c ,/d the/e new/f hotel/g was/h destroyed/i by/j the/k king/l ./m",
     "Il/c y/c a/c trois/a jours/b ,/d le/e nouvel/f hôtel/g a/h été/h détruit/i par/j le/k roi/l ./m"),
    (lambda w: Sentence(
        (*w.sentence("the cat", do(w, "sleep")).clauses, *w.sentence("the dog", do(w, "run")).clauses,
         *w.sentence("he", do(w, "hear", thing="the wolf")).clauses), (w.joiners[", but"], w.joiners["because"])),
     "The cat sleeps, but the dog runs because he hears the wolf.",
     "Le chat dort, mais le chien court parce qu'il entend le loup.",
     "The/a cat/b sleeps/c ,/d but/e the/f dog/g runs/h because/i he/j hears/k the/l wolf/m ./n",
     "Le/a chat/b dort/c ,/d mais/e le/f chien/g court/h parce/i qu'/i il/j entend/k le/l loup/m ./n"),
    (lambda w: w.sentence("she", do(w, "love", "past", "this old tree"), "not"),
     "She did not love this old tree.", "Elle n'aimait pas ce vieil arbre.",
     "She/a did/bg not/b love/c this/d old/e tree/f ./h", "Elle/a n'/b aimait/cg pas/b ce/d vieil/e arbre/f ./h"),
    (lambda w: w.sentence("she", do(w, "drink", "past", "this good wine"), "always"),
     "She always drank this good wine.", "Elle a toujours bu ce bon vin.",
     "She/a always/b drank/c this/d good/e wine/f ./g", "Elle/a a/c toujours/b bu/c ce/d bon/e vin/f ./g"),
    (lambda w: w.sentence("Hélène", do(w, "obey", thing="the+ teacher")),
     "Hélène obeys the teachers.", "Hélène obéit aux professeurs.",
     "Hélène/a obeys/b the/c teachers/d ./e", "Hélène/a obéit/b aux/bc professeurs/d ./e"),
    (lambda w: w.sentence("the small factory", be(w, "noisy", "future", "very"), asked=True, last=w.times["next year"]),
     "Will the small factory be very noisy next year?",
     "Est-ce que la petite usine sera très bruyante l'année prochaine ?",
     "Will/ab the/c small/d factory/e be/f very/g noisy/h next/i year/j ?/k",
     "Est-ce/a que/a la/c petite/d usine/e sera/bf très/g bruyante/h l'/j année/j prochaine/i ?/k"),
    (lambda w: w.sentence("I", do(w, "hurry"), "not"),
     "I do not hurry.", "Je ne me dépêche pas.", "I/a do/b not/b hurry/c ./d", "Je/a ne/b me/c dépêche/c pas/b ./d"),
    (lambda w: w.sentence("the queen", do(w, "eat", "past", w.phrase(
        "the fresh soup", relative=ObjectRelative(w.verbs["prepare"], "past", None, w.pronouns["I"])))),
     "The queen ate the fresh soup that I prepared.", "La reine a mangé la soupe fraîche que j'ai préparée.",
     "The/a queen/b ate/c the/d fresh/e soup/f that/g I/h prepared/i ./j",
     "La/a reine/b a/c mangé/c la/d soupe/f fraîche/e que/g j'/h ai/i préparée/i ./j"),
    (lambda w: w.sentence("a honest lawyer", do(w, "enter", "past", "the school")),
     "An honest lawyer entered the school.", "Un avocat honnête est entré dans l'école.",
     "An/a honest/b lawyer/c entered/d the/e school/f ./g",
     "Un/a avocat/c honnête/b est/d entré/d dans/d l'/e école/f ./g"),
    (lambda w: w.sentence("Louise", do(w, "send", "future", "80 letter", to="our uncle"),
                          last=HencePhrase(number_word(2), w.units["week"])),
     "Louise will send eighty letters to our uncle in two weeks.",
     "Louise enverra quatre-vingts lettres à notre oncle dans deux semaines.",
     "Louise/a will/b send/c eighty/d letters/e to/f our/g uncle/h in/i two/j weeks/k ./l",
     "Louise/a enverra/bc quatre-vingts/d lettres/e à/f notre/g oncle/h dans/i deux/j semaines/k ./l"),
    (lambda w: w.sentence("the bird", do(w, "fall", "past"), last=w.times["on Monday"]),
     "The bird fell on Monday.", "L'oiseau est tombé lundi.",
     "The/a bird/b fell/c on/d Monday/d ./e", "L'/a oiseau/b est/c tombé/c lundi/d ./e"),
    (lambda w: w.sentence("several loyal friend", do(w, "steal", thing="the+ jewel", modal="must"), "not"),
     "Several loyal friends must not steal the jewels.", "Plusieurs amis loyaux ne doivent pas voler les bijoux.",
     "Several/a loyal/b friends/c must/d not/e steal/f the/g jewels/h ./i",
     "Plusieurs/a amis/c loyaux/b ne/e doivent/d pas/e voler/f les/g bijoux/h ./i"),
    (lambda w: w.sentence("we", do(w, "see", thing="he", modal="want"), "no longer"),
     "We no longer want to see him.", "Nous ne voulons plus le voir.",
     "We/a no/b longer/b want/c to/d see/d him/e ./f", "Nous/a ne/b voulons/c plus/b le/e voir/d ./f"),
]


def tagged(text):
    """Words, and the letters of each."""
    parts = [part.rpartition("/") for part in text.split()]
    return tuple(word for word, _, _ in parts), [set(letters) - {"-"} for _, _, letters in parts]


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden[1] for golden in GOLDEN])
def test_translation_and_links_by_hand(words, golden):
    derivation, source, target, english, french = golden
    pair = phrasebook.write_pair(derivation(words))
    assert (pair.source, pair.target) == (source, target)
    source_words, source_letters = tagged(english)
    target_words, target_letters = tagged(french)
    assert (pair.source_words, pair.target_words) == (source_words, target_words)
    by_hand = {(i, j) for i, some in enumerate(source_letters) for j, other in enumerate(target_letters)
               if some & other}
    assert set(pair.alignment) == by_hand
    assert list(pair.alignment) == sorted(by_hand)


def french(*words):
    """The French words as they are where they meet, with their bits."""
    page = ClauseText()
    page.english.append(("x", 0))
    page.french += [(word, 1 << place) for place, word in enumerate(words)]
    pair = join_clauses([page], ".")
    return pair.target_words[:-1]


@pytest.mark.parametrize(("written", "met"), [
    ("le homme dort", ["L'", "homme", "dort"]),
    ("le *héros dort", ["Le", "héros", "dort"]),
    ("tu parles de le chien", ["Tu", "parles", "du", "chien"]),
    ("tu parles de le homme", ["Tu", "parles", "de", "l'", "homme"]),
    ("tu parles de la eau", ["Tu", "parles", "de", "l'", "eau"]),
    ("tu parles de le *hibou", ["Tu", "parles", "du", "hibou"]),
    ("tu parles de les hommes", ["Tu", "parles", "des", "hommes"]),
    ("tu vas à le marché", ["Tu", "vas", "au", "marché"]),
    ("tu vas à le hôtel", ["Tu", "vas", "à", "l'", "hôtel"]),
    ("tu vas à les îles", ["Tu", "vas", "aux", "îles"]),
    ("tu vas à la école", ["Tu", "vas", "à", "l'", "école"]),
    ("je ne ai pas de œuf", ["Je", "n'", "ai", "pas", "d'", "œuf"]),
    ("je entends que elle se endort", ["J'", "entends", "qu'", "elle", "s'", "endort"]),
    ("plus que *onze chats", ["Plus", "que", "onze", "chats"]),
    ("parce que Émile dort", ["Parce", "qu'", "Émile", "dort"]),
])
def test_french_words_that_meet(written, met):
    assert list(french(*written.split())) == met


def test_a_contraction_has_the_links_of_both():
    page = ClauseText()
    page.english += [("of", 1), ("the", 2), ("king", 4)]
    page.french += [("de", 1), ("le", 2), ("roi", 4)]
    assert join_clauses([page], ".").alignment == ((0, 0), (1, 0), (2, 1), (3, 2))


def test_pages_are_linked_apart():
    pages = [ClauseText(), ClauseText()]
    for page in pages:
        page.word("a", "un")
        page.word("b", "deux")
    assert join_clauses(pages, ".").alignment == tuple((place, place) for place in range(5))


def test_offsets_point_at_the_words():
    for pair in phrasebook.pairs(3000, seed=3, clauses=(1, 3)):
        for text, words, offsets in ((pair.source, pair.source_words, pair.source_offsets),
                                     (pair.target, pair.target_words, pair.target_offsets)):
            assert [text[start:end] for start, end in offsets] == list(words)
            gaps = [text[end:start] for (_, end), (start, _) in itertools.pairwise(offsets)]
            assert set(gaps) <= {"", " "}
            assert (offsets[0][0], offsets[-1][1]) == (0, len(text))


def test_plain_text_is_spaced_as_usual():
    for pair in phrasebook.pairs(3000, seed=4, clauses=(1, 2)):
        assert pair.source[0].isupper() or pair.source[0].isdigit()
        assert pair.target[0].isupper() or pair.target[0].isdigit()
        assert pair.source[-1] == pair.target[-1] in ".?"
        assert pair.target.endswith(" ?") == pair.source.endswith("?")
        for text in (pair.source, pair.target):
            assert "  " not in text
            assert " ," not in text
            assert " ." not in text
            assert " '" not in text
            assert "*" not in text
        assert "' " not in pair.target


# What every English word of the small language can be in French.
CONTENT = {
    "man": "homme", "men": "hommes", "woman": "femme", "women": "femmes", "dog": "chien", "dogs": "chiens",
    "cat": "chat", "cats": "chats",
    "apple": "pomme", "apples": "pommes", "orange": "orange", "oranges": "oranges", "cake": "gâteau",
    "cakes": "gâteaux", "big": "grand grande grands grandes", "small": "petit petite petits petites",
    "old": "vieux vieil vieille vieilles", "red": "rouge rouges", "black": "noir noire noirs noires",
    "sick": "malade malades", "Paul": "Paul", "Alice": "Alice", "quickly": "rapidement", "often": "souvent",
    "eats": "mange", "sees": "voit", "ate": "a ont mangé", "saw": "a ont vu",
    "eat": "mange mangent mangera mangeront mangé manger", "see": "voit voient verra verront vu voir",
    "will": "mangera mangeront verra verront", "can": "peut peuvent", "wants": "veut", "want": "veut veulent",
    "cannot": "peut peuvent ne n' pas", "not": "ne n' pas", "never": "ne n' jamais", "does": "ne n' pas",
    "do": "ne n' pas", "did": "ne n' pas a ont", "to": "manger voir", ".": ".", ",": ",", "yesterday": "hier",
    "tomorrow": "demain", "now": "maintenant",
}
ENGLISH_ARTICLES = ("the", "a", "an", "any", "some")
FRENCH_ARTICLES = ("le", "la", "les", "l'", "un", "une", "des", "de", "d'")


def small_pairs(small):
    """Sentences with an object in a language of a few words; those with a word that is not in the list are left out."""
    words = small(
        nouns=["man", "woman", "dog", "cat", "apple", "orange", "cake"], verbs=["eat", "see"],
        adjectives=["big", "small", "old", "red", "black", "sick"], determiners=["the", "a", "some"],
        names=["Paul", "Alice"], middles=["not", "never", "often"], manners=["quickly"], modals=["can", "want"],
        times=["yesterday", "tomorrow", "now"])
    sampler = RandomChooser(GrammarTables(words, EQUAL_WEIGHTS), random.Random(11).random)
    while True:
        try:
            pair = write_pair(Sentence((grammar.transitive_clause(sampler, grammar.STATEMENT),)))
        except IndexError:  # the small language has no place to be in
            continue
        plain = [word[0].lower() + word[1:] if index == 0 and word not in CONTENT else word
                 for index, word in enumerate(pair.source_words)]
        content = [word for word in plain if word not in ENGLISH_ARTICLES]
        if set(content) <= set(CONTENT) and len(set(content)) == len(content):
            yield pair, plain


def aligned(source, target):
    """Links by the word list; articles are linked in their order, for phrases do not change places."""
    lowered = [word[0].lower() + word[1:] for word in target]
    links = set()
    for place, word in enumerate(source):
        found = CONTENT[word].split() if word in CONTENT else ()
        links |= {(place, other) for other in range(len(target)) if lowered[other] in found or target[other] in found}
    articles = [place for place, word in enumerate(source) if word in ENGLISH_ARTICLES]
    french_articles = [place for place, word in enumerate(lowered) if word in FRENCH_ARTICLES]
    return links | set(zip(articles, french_articles, strict=True))


def error_rate(guess, gold):
    """Alignment error rate where all gold links are sure."""
    return 1 - 2 * len(guess & gold) / (len(guess) + len(gold))


def test_an_independent_aligner_finds_the_gold_links(small):
    kinds = set()
    for (pair, source), _ in zip(small_pairs(small), range(1500), strict=False):
        gold = set(pair.alignment)
        assert error_rate(aligned(source, pair.target_words), gold) == 0, pair
        kinds |= {"crossed" for i, j in gold for k, m in gold if i < k and j > m}
        kinds |= set(source)
    assert kinds >= {*CONTENT, *ENGLISH_ARTICLES, "crossed"}


def test_the_error_rate_sees_a_wrong_link():
    assert error_rate({(0, 0), (1, 2)}, {(0, 0), (1, 1)}) == pytest.approx(0.5)


def test_links_are_in_range_and_leave_hardly_a_word_alone(whole_pairs):
    alone = set()
    crossed = 0
    for pair in whole_pairs:
        sources, targets = {i for i, _ in pair.alignment}, {j for _, j in pair.alignment}
        assert list(pair.alignment) == sorted(set(pair.alignment))
        assert sources <= set(range(len(pair.source_words)))
        assert targets == set(range(len(pair.target_words)))
        alone |= {word for place, word in enumerate(pair.source_words) if place not in sources}
        crossed += any(i < k and j > m for i, j in pair.alignment for k, m in pair.alignment)
    assert alone == {"and"}  # inside numbers
    assert crossed > 0.3 * len(whole_pairs)


def test_links_do_not_depend_on_where_a_clause_stands(words, whole_sample):
    """They come from its derivation."""
    joiner = words.joiners["and"]
    clauses = [sentence.clauses[0] for sentence in whole_sample[:400] if not sentence.clauses[0].asked]
    for first, second in itertools.pairwise(clauses):
        single = write_pair(Sentence((second,)))
        double = write_pair(Sentence((first, second), (joiner,)))
        start, other = len(double.source_words) - len(single.source_words), len(double.target_words) - len(
            single.target_words)
        moved = {(i + start, j + other) for i, j in single.alignment}
        assert moved == {(i, j) for i, j in double.alignment if i >= start}

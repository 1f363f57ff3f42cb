"""How French forms of nouns, adjectives and numbers are made.

It knows spelling alone: neither the words of the phrasebook nor English. Verbs are in conjugation.py.
"""


FRENCH_ONES = ("", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "*huit", "neuf", "dix", "*onze", "douze", "treize",
        "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf")
FRENCH_TENS = ("", "", "vingt", "trente", "quarante", "cinquante", "soixante", "soixante", "quatre-vingt", "quatre-vingt")


def french_plural(form: str) -> str:
    """The plural of a noun or a masculine adjective, by rule: chevaux, gâteaux, jeux, souris."""
    if form.endswith(("s", "x", "z")):
        return form
    if form.endswith("al"):
        return form[:-1] + "ux"
    return form + ("x" if form.endswith(("eau", "jeu")) else "s")


def french_feminine(form: str) -> str:
    """The feminine of an adjective, by rule: heureuse, légère, italienne, rouge."""
    if form.endswith("e"):
        return form
    if form.endswith("x"):
        return form[:-1] + "se"
    if form.endswith("er"):
        return form[:-2] + "ère"
    if form.endswith("en"):
        return form + "ne"
    return form + "e"


def four_forms(masculine: str, feminine_form: str) -> tuple[str, str, str, str]:
    """Masculine, feminine, masculine plural, feminine plural."""
    return masculine, feminine_form, french_plural(masculine), feminine_form + "s"


def french_number(value: int, gender: str) -> tuple[str, ...]:
    """The words for 1 to 99: vingt et une, soixante-douze, quatre-vingts."""
    one = "une" if gender == "f" else "un"
    if value < 20:
        return (one if value == 1 else FRENCH_ONES[value],)
    if value == 80:
        return ("quatre-vingts",)
    tens, rest = FRENCH_TENS[value // 10], value % 10 + (10 if value // 10 in (7, 9) else 0)
    if not rest:
        return (tens,)
    if rest in (1, 11) and value < 80:
        return tens, "et", one if rest == 1 else "onze"
    return (f"{tens}-{one if rest == 1 else FRENCH_ONES[rest].removeprefix('*')}",)

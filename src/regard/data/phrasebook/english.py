"""How English forms are made: plurals, the third person, a or an, numbers in words.

It knows spelling alone: neither the words of the phrasebook nor French.
"""


ENGLISH_ONES = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SILENT_H = ("honest", "hour", "honour")
SPOKEN_Y = ("use", "uni", "euro", "one")


def add_s(word: str) -> str:
    """The plural of a noun and the third person of a verb, by rule: boxes, cherries, keys."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeou":
        return word[:-1] + "ies"
    return word + "s"


def third_person(base: str) -> str:
    """The third person singular of the present."""
    return {"have": "has", "go": "goes"}.get(base) or add_s(base)


def indefinite_article(following: str) -> str:
    """`an` before a vowel that is heard, `a` elsewhere."""
    if following.startswith(SILENT_H):
        return "an"
    return "an" if following[0].lower() in "aeiou" and not following.startswith(SPOKEN_Y) else "a"


def english_number(value: int) -> str:
    """One word for 1 to 99: forty-two."""
    if value < 20:
        return ENGLISH_ONES[value]
    return ENGLISH_TENS[value // 10] + (f"-{ENGLISH_ONES[value % 10]}" if value % 10 else "")

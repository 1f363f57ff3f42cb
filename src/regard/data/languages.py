"""Language codes: which texts are codes, pairs of codes such as "en-fr", and what file names say about languages.

    parse_pair("pt-BR-en")                     LanguagePair("pt-BR", "en"), what a user types
    check_code("source_lang", "EN")            "en"; a ValueError with an example if it is not a code
    languages_in_names("train.en", "train.fr") LanguagePair("en", "fr"), or None
    language_name("pt-BR")                     "Portuguese (BR)"

A code is a BCP 47 tag: a language of two or three letters, then possibly a script (Hans), a region (BR, 419) and
variants. A user may name any well-formed one. Codes are recognised without being asked for, in a file name or a header
line, only if the language is in `LANGUAGES`, since many short words look like codes.
"""

import os
import re
from typing import NamedTuple

from regard import checks

# ISO 639-1, and some languages that have three letters only.
LANGUAGES: dict[str, str] = dict(entry.split(" ", 1) for entry in """
aa Afar|ab Abkhazian|ae Avestan|af Afrikaans|ak Akan|am Amharic|an Aragonese|ar Arabic|as Assamese|av Avaric|ay Aymara|
az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian|bi Bislama|bm Bambara|bn Bengali|bo Tibetan|br Breton|bs Bosnian|
ca Catalan|ce Chechen|ch Chamorro|co Corsican|cr Cree|cs Czech|cu Church Slavic|cv Chuvash|cy Welsh|da Danish|de German|
dv Divehi|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque|fa Persian|ff Fulah|
fi Finnish|fj Fijian|fo Faroese|fr French|fy Western Frisian|ga Irish|gd Scottish Gaelic|gl Galician|gn Guarani|
gu Gujarati|gv Manx|ha Hausa|he Hebrew|hi Hindi|ho Hiri Motu|hr Croatian|ht Haitian|hu Hungarian|hy Armenian|hz Herero|
ia Interlingua|id Indonesian|ie Interlingue|ig Igbo|ii Sichuan Yi|ik Inupiaq|io Ido|is Icelandic|it Italian|
iu Inuktitut|ja Japanese|jv Javanese|ka Georgian|kg Kongo|ki Kikuyu|kj Kuanyama|kk Kazakh|kl Kalaallisut|km Khmer|
kn Kannada|ko Korean|kr Kanuri|ks Kashmiri|ku Kurdish|kv Komi|kw Cornish|ky Kyrgyz|la Latin|lb Luxembourgish|lg Ganda|
li Limburgish|ln Lingala|lo Lao|lt Lithuanian|lu Luba-Katanga|lv Latvian|mg Malagasy|mh Marshallese|mi Maori|
mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|na Nauru|nb Norwegian Bokmål|
nd North Ndebele|ne Nepali|ng Ndonga|nl Dutch|nn Norwegian Nynorsk|no Norwegian|nr South Ndebele|nv Navajo|ny Chichewa|
oc Occitan|oj Ojibwa|om Oromo|or Odia|os Ossetian|pa Punjabi|pi Pali|pl Polish|ps Pashto|pt Portuguese|qu Quechua|
rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian|sd Sindhi|se Northern Sami|sg Sango|
sh Serbo-Croatian|si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|sq Albanian|sr Serbian|ss Swati|
st Southern Sotho|su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai|ti Tigrinya|tk Turkmen|
tl Tagalog|tn Tswana|to Tongan|tr Turkish|ts Tsonga|tt Tatar|tw Twi|ty Tahitian|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|
ve Venda|vi Vietnamese|vo Volapük|wa Walloon|wo Wolof|xh Xhosa|yi Yiddish|yo Yoruba|za Zhuang|zh Chinese|zu Zulu|
ara Arabic|ast Asturian|ceb Cebuano|deu German|dsb Lower Sorbian|eng English|fil Filipino|fra French|fur Friulian|
gsw Swiss German|haw Hawaiian|hsb Upper Sorbian|ita Italian|jpn Japanese|kab Kabyle|kor Korean|nds Low German|nld Dutch|
pol Polish|por Portuguese|rus Russian|spa Spanish|swe Swedish|tur Turkish|ukr Ukrainian|vie Vietnamese|yue Cantonese|
zho Chinese""".replace("\n", "").split("|"))
"""The English names of languages by their codes."""
CODES_BY_NAME = {name.casefold(): code for code, name in reversed(LANGUAGES.items())}
"""The two-letter code of an English name, if it has one."""
EXAMPLE = '"en", "pt-BR" or "zh-Hans"'
_CODE = re.compile(r"([a-z]{2,3})(?:-([a-z]{4}))?(?:-([a-z]{2}|[0-9]{3}))?((?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*)",
                   re.IGNORECASE)
_SUBTAG = re.compile(r"[A-Z][a-z]{3}|[A-Z]{2}|[0-9]{3}|[a-z0-9]{5,8}|[0-9][a-z0-9]{3}")
_TEXT_SUFFIXES = (".gz", ".txt", ".tsv", ".jsonl", ".tok", ".bpe")


class LanguagePair(NamedTuple):
    """The codes of the source and the target language."""

    source: str
    target: str

    def __str__(self) -> str:
        """As a user types it: "en-fr"."""
        return f"{self.source}-{self.target}"


def normalize_code(text: str) -> str | None:
    """A code in the usual spelling, "pt-BR" for "PT_br"; None if the text is not a well-formed code."""
    found = _CODE.fullmatch(text.strip().replace("_", "-"))
    if found is None:
        return None
    language, script, region, variants = found.groups()
    return language.lower() + (f"-{script.title()}" if script else "") + (f"-{region.upper()}" if region else "") \
        + variants.lower()


def check_code(argument: str, code: str) -> str:
    """A code in the usual spelling; a ValueError with an example if it is not well-formed."""
    found = normalize_code(code) if isinstance(code, str) else None
    if found is None:
        raise checks.wrong(argument, f"a language code such as {EXAMPLE}", repr(code))
    return found


def parse_pair(text: str, argument: str = "--languages") -> LanguagePair:
    """The pair in "en-fr", "en:fr", "pt-BR-en" or "zh-Hans-en-GB".

    Scripts and regions are recognised by their capitals, so that they tell where a code ends.
    """
    parts = text.split(":") if ":" in text else _split_pair(text.replace("_", "-"))
    codes = [normalize_code(part) for part in parts]
    if len(codes) != 2 or None in codes:
        raise checks.wrong(argument, "two language codes, such as en-fr or pt-BR-en (regions in capitals)",
                           f'"{text}"', "A colon separates them too: pt-BR:en.")
    source, target = codes
    assert source is not None
    assert target is not None
    return LanguagePair(source, target)


def _split_pair(text: str) -> list[str]:
    parts = text.split("-")
    if len(parts) == 2 and parts[0].isupper():  # EN-FR
        return parts
    codes = parts[:1]
    for part in parts[1:]:
        if _SUBTAG.fullmatch(part) and not (part.islower() and part.isalpha()):
            codes[-1] += f"-{part}"
        else:
            codes.append(part)
    return codes


def known_code(text: str) -> str | None:
    """The code that a text is, if its language is in `LANGUAGES`; English names count too ("French")."""
    by_name = CODES_BY_NAME.get(text.strip().casefold())
    if by_name is not None:
        return by_name
    code = normalize_code(text)
    return code if code is not None and code.partition("-")[0] in LANGUAGES else None


def known_pair(source: str | None, target: str | None) -> LanguagePair | None:
    """The pair of two names that are codes of known languages; None if one is not."""
    codes = [None if name is None else known_code(name) for name in (source, target)]
    return LanguagePair(codes[0], codes[1]) if codes[0] and codes[1] else None


def language_name(code: str) -> str:
    """The English name of a language, "Portuguese (BR)"; the code itself if it has no name here."""
    language, _, rest = code.partition("-")
    return f"{LANGUAGES[language]}{f' ({rest})' if rest else ''}" if language in LANGUAGES else code


def languages_in_names(source: str, target: str | None = None) -> LanguagePair | None:
    """The languages in the names of two files, train.en and train.fr, or of one, pairs.en-fr.tsv."""
    if target is not None:
        codes = [known_code(_last_part(path)) for path in (source, target)]
    else:
        codes = [known_code(part) for part in _split_pair(_last_part(source).replace("_", "-"))]
    if len(codes) != 2 or not codes[0] or not codes[1] or codes[0] == codes[1]:
        return None
    return LanguagePair(codes[0], codes[1])


def _last_part(path: str) -> str:
    """The last part of a file name, without the suffixes of text files."""
    name = os.path.basename(path)
    while any(name.lower().endswith(suffix) for suffix in _TEXT_SUFFIXES):
        name = name[:name.rindex(".")]
    return name.rpartition(".")[2]

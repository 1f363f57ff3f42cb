"""Language codes: which texts are codes, pairs of codes such as "en-fr", and what file names say about languages.

    parse_pair("pt-BR-en")                     LanguagePair("pt-BR", "en"), what a user types
    check_code("source_lang", "EN")            "en"; a ValueError with an example if it is not a code
    languages_in_names("train.en", "train.fr") LanguagePair("en", "fr"), or None
    language_in_name("text.en.gz")             "en", or None
    same_languages(one, other)                 whether two pairs differ in regions and scripts at most
    language_name("pt-BR")                     "Portuguese (BR)"
    language_control("fr")                     "<2fr>", the control token of a target language
    target_controls(tokenizer.controls)        {"fr": "<2fr>", ...}; Marian's >>fra<< counts too
    find_language("fr", ["fra", "deu"])        "fra", the same language under another code

A code is a BCP 47 tag: a language of two or three letters, then possibly a script (Hans), a region (BR, 419) and
variants. A user may name any well-formed one. Codes are recognised without being asked for, in a file name or a header
line, only if the language is in `LANGUAGES`, since many short words look like codes.
"""

import os
import re
from collections.abc import Iterable
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
# ISO 639-1 and ISO 639-3, and where they differ the older code of ISO 639-2; Mandarin counts as Chinese.
_THREE_LETTERS = """
aa aar|ab abk|ae ave|af afr|ak aka|am amh|an arg|ar ara|as asm|av ava|ay aym|az aze|ba bak|be bel|bg bul|bi bis|bm bam|
bn ben|bo bod tib|br bre|bs bos|ca cat|ce che|ch cha|co cos|cr cre|cs ces cze|cu chu|cv chv|cy cym wel|da dan|
de deu ger|dv div|dz dzo|ee ewe|el ell gre|en eng|eo epo|es spa|et est|eu eus baq|fa fas per|ff ful|fi fin|fj fij|
fo fao|fr fra fre|fy fry|ga gle|gd gla|gl glg|gn grn|gu guj|gv glv|ha hau|he heb|hi hin|ho hmo|hr hrv|ht hat|hu hun|
hy hye arm|hz her|ia ina|id ind|ie ile|ig ibo|ii iii|ik ipk|io ido|is isl ice|it ita|iu iku|ja jpn|jv jav|ka kat geo|
kg kon|ki kik|kj kua|kk kaz|kl kal|km khm|kn kan|ko kor|kr kau|ks kas|ku kur|kv kom|kw cor|ky kir|la lat|lb ltz|lg lug|
li lim|ln lin|lo lao|lt lit|lu lub|lv lav|mg mlg|mh mah|mi mri mao|mk mkd mac|ml mal|mn mon|mr mar|ms msa may|mt mlt|
my mya bur|na nau|nb nob|nd nde|ne nep|ng ndo|nl nld dut|nn nno|no nor|nr nbl|nv nav|ny nya|oc oci|oj oji|om orm|or ori|
os oss|pa pan|pi pli|pl pol|ps pus|pt por|qu que|rm roh|rn run|ro ron rum|ru rus|rw kin|sa san|sc srd|sd snd|se sme|
sg sag|sh hbs|si sin|sk slk slo|sl slv|sm smo|sn sna|so som|sq sqi alb|sr srp|ss ssw|st sot|su sun|sv swe|sw swa|ta tam|
te tel|tg tgk|th tha|ti tir|tk tuk|tl tgl|tn tsn|to ton|tr tur|ts tso|tt tat|tw twi|ty tah|ug uig|uk ukr|ur urd|uz uzb|
ve ven|vi vie|vo vol|wa wln|wo wol|xh xho|yi yid|yo yor|za zha|zh zho chi cmn|zu zul"""
SHORT_CODES: dict[str, str] = {long: entry.split()[0] for entry in _THREE_LETTERS.replace("\n", "").split("|")
                               for long in entry.split()[1:]}
"""The two-letter code of a language by its three-letter codes."""
EXAMPLE = '"en", "pt-BR" or "zh-Hans"'
_CODE = re.compile(r"([a-z]{2,3})(?:-([a-z]{4}))?(?:-([a-z]{2}|[0-9]{3}))?((?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*)",
                   re.IGNORECASE)
_SUBTAG = re.compile(r"[A-Z][a-z]{3}|[A-Z]{2}|[0-9]{3}|[a-z0-9]{5,8}|[0-9][a-z0-9]{3}")
_CONTROL = re.compile(r"<2([^\s<>]+)>|>>([^\s<>]+)<<")
_TEXT_SUFFIXES = (".gz", ".txt", ".tsv", ".jsonl", ".tok", ".bpe")


class LanguagePair(NamedTuple):
    """The codes of the source and the target language."""

    source: str
    target: str

    def __str__(self) -> str:
        """As a user types it: "en-fr"."""
        return f"{self.source}-{self.target}"

    @property
    def reverse(self) -> "LanguagePair":
        """The pair of the other direction."""
        return LanguagePair(self.target, self.source)


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


def language_in_name(path: str) -> str | None:
    """The language in the name of one file, after a dot: train.en. A pair, as in pairs.en-fr, is none."""
    name = os.path.basename(path)
    last = _last_part(name)
    return known_code(last) if f".{last}" in name and languages_in_names(name) is None else None


def same_languages(one: LanguagePair, other: LanguagePair) -> bool:
    """Whether two pairs are of the same languages, whatever their regions and scripts."""
    return all(_name_without_region(first) == _name_without_region(second)
               for first, second in zip(one, other, strict=True))


def _name_without_region(code: str) -> str:
    """The English name of a language, which its codes of two and three letters share."""
    language = code.replace("_", "-").partition("-")[0]
    return LANGUAGES.get(language, language)


def _last_part(path: str) -> str:
    """The last part of a file name, without the suffixes of text files."""
    name = os.path.basename(path)
    while any(name.lower().endswith(suffix) for suffix in _TEXT_SUFFIXES):
        name = name[:name.rindex(".")]
    return name.rpartition(".")[2]


# The target languages of a model

def language_control(code: str) -> str:
    """The name of the control token that asks for a language."""
    return f"<2{code}>"


def target_controls(names: Iterable[str]) -> dict[str, str]:
    """The control tokens that ask for a language, by its code, among the names of all control tokens."""
    found = ((name, _CONTROL.fullmatch(name)) for name in names)
    codes = ((name, match and normalize_code(match[1] or match[2])) for name, match in found)
    return {code: name for name, code in codes if code}


def find_language(wanted: str, available: Iterable[str]) -> str | None:
    """The available code for the language that a user asks for; None if there is none, or more than one fits.

    fr and fra are the same language, and so is an English name. A code without script and region also finds the only
    available one that has them: zh finds cmn-Hans.
    """
    code, known = normalize_code(wanted), [*available]
    if code in known:
        return code
    code = code or known_code(wanted)
    if code is None:
        return None
    language, rest = _language_and_rest(code)
    same = [one for one in known if _language_and_rest(one)[0] == language]
    exact = [one for one in same if _language_and_rest(one)[1] == rest]
    if exact:
        return exact[0]
    return same[0] if len(same) == 1 and not rest else None


def _language_and_rest(code: str) -> tuple[str, str]:
    """The language of a code, as two letters if it has such a code, and what follows it."""
    language, _, rest = code.partition("-")
    return SHORT_CODES.get(language, language), rest

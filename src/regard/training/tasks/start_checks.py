"""Does the data fit the model that is fine-tuned? Characters, lengths, languages and the direction of sentence pairs.

    check_characters(tokenizer, texts, ...)       a tokenizer without bytes cannot write every character
    check_positions(task, name, store, ...)       a model with learned positions reads texts up to a length
    check_languages(start, languages, ...)        the languages of the model and those of the data
    check_direction(start, pairs, controls, ...)  the model itself tells whether source and target are exchanged
    direction_controls(tokenizer, target)         the control token of a model with several target languages

A ValueError says what does not fit and what to do; a note says what the user should know.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from regard.checks import plural
from regard.data.filters import is_blank
from regard.data.languages import LanguagePair, find_language, language_name, same_languages, target_controls
from regard.data.sources.text import DataError, SentencePair, printable
from regard.data.store import PairStore
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.tasks.evaluation import translation_loss
from regard.tasks.task import Task, max_positions
from regard.tasks.translator import Translator
from regard.training.starting_point import StartModel
from regard.training.tasks.common import in_blocks

MAX_UNKNOWN_FRACTION = 0.05
"""The fraction of texts with characters that the tokenizer cannot write, up to which a note is enough."""
SHOWN_CHARACTERS = 12
DIRECTION_PAIRS, MIN_DIRECTION_PAIRS = 200, 5
"""Pairs that are scored in both directions, and how many are needed."""
CLEARLY_BETTER = 0.85
"""Exchanged pairs are taken for right if their loss per character is at most this fraction of the other."""
UNKNOWN_LANGUAGE = 4.0
"""A loss per character from which on a model does not know the languages: so much has a guess among 55 characters."""
MAX_SCORED_CHARACTERS = 400
"""Longer texts are not scored for the direction."""
OTHER_FILES_REMEDY = "Exchange the sides in this data, or use other data (--source and --target are for all files)."
"""What to do about validation and general data whose languages or direction are not those of the training data."""


def new_labels_note(start: StartModel, labels: Iterable[str]) -> str | None:
    """A note if the data has labels that the start model does not know; None if it knows all, or has no labels."""
    new = sorted({*labels} - {*start.labels})
    if not start.labels or not new:
        return None
    return (f"The labels are not those of {start.name} ({printable(new[0])} is new), so the model gets a new output "
            "layer.")


def check_characters(tokenizer: Tokenizer, texts: Iterable[str], where: str, noun: str) -> str | None:
    """Refuse texts of which many have characters that the tokenizer cannot write; a note if it is few.

    Tokenizers of regard write every character, those of imported models may not.

    Args:
        where: the files, for messages.
        noun: what a text is, such as "source".
    """
    unknown = tokenizer.special.unknown
    if tokenizer.lossless or unknown is None:
        return None
    lines, total, characters = 0, 0, Counter[str]()
    for block in in_blocks(texts):
        total += len(block)
        for text, ids in zip(block, tokenizer.encode_batch(block), strict=True):
            if unknown in ids:
                lines += 1
                characters.update(_unknown_characters(tokenizer, text, ids, unknown))
    if not lines:
        return None
    shown = " ".join(f"{character} (U+{ord(character):04X})" for character, _ in characters.most_common(
        SHOWN_CHARACTERS))
    more = f" and {len(characters) - SHOWN_CHARACTERS} more" if len(characters) > SHOWN_CHARACTERS else ""
    found = (f"{where}: The tokenizer of the start model cannot write {plural(len(characters), 'character')} of the "
             f"data: {shown}{more}. They are in {lines:,} of {plural(total, noun)}, and become the unknown token.")
    if lines > MAX_UNKNOWN_FRACTION * total:
        raise DataError(f"{found} Remove or replace them, or train a new model without --from.")
    return found


def _unknown_characters(tokenizer: Tokenizer, text: str, ids: Sequence[int], unknown: int) -> set[str]:
    """The characters that make parts of a text unknown; all of a part if none of them alone does."""
    found = set[str]()
    spans = tokenizer.spans(text)
    for id_, span in zip(ids, spans, strict=False):
        if id_ == unknown:
            part = {character for character in text[span.start:span.end] if not character.isspace()}
            alone = {character for character in part if unknown in tokenizer.encode(character)}
            found |= alone or part
    return found


def check_positions(task: Task, name: str, store: PairStore, validation: Sequence[tuple[str, str]] = ()) -> None:
    """Refuse pairs that are longer than the positions of a model that reads them.

    Args:
        name: how messages call the model.
        validation: pairs that are not in the store.
    """
    assert isinstance(task, Translator)
    assert isinstance(task.tokenizer, PairTokenizer), "checked when it was loaded"
    tokenizer = task.tokenizer
    if max_positions(task.model.encoder) is None and max_positions(task.model.decoder) is None:
        return
    encoded = (tokenizer.encode_sources([source for source, _ in validation]),
               tokenizer.encode_targets([target for _, target in validation]))
    # A target follows the start token.
    sides = ("source", task.model.encoder, 0), ("target", task.model.decoder, 1)
    for number, (side, part, extra) in enumerate(sides):
        limit = max_positions(part)
        if limit is None:
            continue
        lengths = [*store.sides[number].lengths(0, len(store)).tolist(), *map(len, encoded[number])]
        long = [length + extra for length in lengths if length + extra > limit]
        if long:
            raise DataError(f"{plural(len(long), side)} of {plural(len(lengths), 'pair')} are longer than the {limit} "
                            f"positions of {name} (the longest has {max(long)} tokens). Leave them out with "
                            f"--set data.filters.max_words={max(1, limit // 3)}, or split them.")


def check_languages(start: StartModel, data: LanguagePair | None, chosen: tuple[str | None, str | None],
                    where: str, remedy: str = "") -> str | None:
    """Refuse data whose languages contradict those of the start model; a note if the user has set them so.

    Args:
        data: the languages that the files tell.
        chosen: the languages that the user has set.
        where: the files, for messages.
        remedy: what the user can do; by default what helps with training data.
    """
    task = start.task
    assert isinstance(task, Translator)
    source, target = task.source_lang, task.target_lang
    if source is None or target is None:
        return None
    model = LanguagePair(source, target)
    found = LanguagePair(chosen[0] or (data.source if data else source), chosen[1] or (data.target if data else target))
    if same_languages(model, found):
        return None
    words = (f"{where}: {start.name} translates {language_name(model.source)} to {language_name(model.target)}, but "
             f"this data is {language_name(found.source)} to {language_name(found.target)}")
    if chosen[0] is not None and chosen[1] is not None:
        return f"{words}. The model is taught this direction, as you have set it."
    if same_languages(model, found.reverse):
        remedy = remedy or "Exchange the files, or the columns with --source and --target."
        raise DataError(f"{words}: the other direction. {remedy}")
    remedy = remedy or f"To teach the model these languages all the same, say so: --languages {found}."
    raise DataError(f"{words}. {remedy}")


class DirectionLosses(NamedTuple):
    """The loss of a sample of pairs per character of what the model writes, as they are and exchanged."""

    given: float
    exchanged: float


def direction_losses(translator: Translator, pairs: Sequence[tuple[str, str]]) -> DirectionLosses:
    """Score pairs in both directions. Characters are counted, since tokens are shorter in a language not learned."""
    losses = [translation_loss(translator, some).nll / max(1, sum(len(target) + 1 for _, target in some))
              for some in (pairs, [(target, source) for source, target in pairs])]
    return DirectionLosses(*losses)


def check_direction(start: StartModel, pairs: Iterable[SentencePair], controls: Sequence[str], where: str,
                    remedy: str = "") -> str | None:
    """Refuse pairs that the start model finds much more probable with source and target exchanged.

    Args:
        where: the files, for messages.
        remedy: what the user can do; by default what helps with training data.

    Returns:
        a note if it knows the pairs in neither direction.
    """
    task = start.task
    assert isinstance(task, Translator)
    fitting = ((pair.source, pair.target) for pair in pairs
               if max(map(len, pair[:2])) <= MAX_SCORED_CHARACTERS and pair.source != pair.target
               and not is_blank(pair.source) and not is_blank(pair.target))
    sample = [*islice(fitting, DIRECTION_PAIRS)]
    if len(sample) < MIN_DIRECTION_PAIRS:
        return None
    translator = task.with_controls(*controls) if controls else task
    try:
        losses = direction_losses(translator, sample)
    except ValueError:  # longer than the positions of the model, which is reported when all pairs are encoded
        return None
    if min(losses) > UNKNOWN_LANGUAGE:
        return (f"{where}: {start.name} has a loss of {losses.given:.2f} per character on "
                f"{plural(len(sample), 'pair')}, and {losses.exchanged:.2f} with source and target exchanged, more "
                "than a guess would have. Are these its languages?")
    if losses.exchanged < CLEARLY_BETTER * losses.given:
        remedy = remedy or ("Exchange the files, or the columns (--source 2 --target 1 for TSV). To teach the model "
                            "this direction all the same, set both languages with --languages.")
        raise DataError(
            f"{where}: The pairs seem to be in the wrong direction: with source and target exchanged, {start.name} "
            f"has a loss of {losses.exchanged:.2f} per character on {plural(len(sample), 'pair')}, and "
            f"{losses.given:.2f} as they are. {remedy}")
    return None


def direction_controls(tokenizer: PairTokenizer, target: str | None, name: str) -> tuple[str, ...]:
    """The control token before the sources of new data, for a model with several target languages.

    Args:
        target: the target language of the data.
        name: that of the start model, for messages.
    """
    named = target_controls(tokenizer.source.controls)
    if not named:
        return ()
    languages = ", ".join(sorted(named))
    if target is None:
        raise DataError(f"{name} translates into several languages: {languages}. Say which one the data is in with "
                        "--languages, for example en-fr.")
    found = find_language(target, named) or find_language(target.partition("-")[0], named)
    if found is None:
        raise DataError(f"{name} translates into {languages}, and not into {language_name(target)} ({target}). Choose "
                        "one of these with --languages, or train a new model.")
    return (named[found],)


def text_notes(start: StartModel, texts: Iterable[str], paths: Sequence[str]) -> tuple[str, ...]:
    """What the user should know about texts for a start model with one tokenizer, after the checks of characters."""
    names = ", ".join(os.path.basename(path) for path in paths)
    return tuple(filter(None, [check_characters(start.tokenizer, texts, names, "text")]))


def start_encoding(start: StartModel | None) -> dict[str, Any]:
    """The arguments of `prepare_texts` for a start model that reads whole texts; none for a new model.

    Imported models read special ids before and after a text, which models of regard do not have.
    """
    if start is None:
        return {}

    def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
        for block in in_blocks(texts):
            yield from start.encode_texts(block)

    return {"tokenizer": start.tokenizer, "encode": encode}

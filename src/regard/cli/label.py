"""`regard label`: give every token of texts a label, and print them as training data is written.

A line of the result is the text, a tab and the labels: side by side for characters, with spaces between them for words.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    DATA_PANEL,
    ENGINE_PANEL,
    MODEL_PANEL,
    OUTPUT_PANEL,
    DeviceOption,
    JsonOption,
    ModelArgument,
    is_file_name,
    open_task,
    process_each,
    text_blocks,
    text_label,
    with_examples,
)
from regard.cli.output import fail, say, write_json, write_line

if TYPE_CHECKING:
    from regard.tasks.labeller import Labeller, Labelling

SHOWN_UNKNOWN = 12
"""Unknown characters that a note shows."""


@with_examples("""
    regard label model "The cat sleeps."
    regard label model MKVLAATGLLSK --merge "H=HGI,E=EB,C=*"
    regard label model --ensemble other-model sentences.txt > labelled.tsv
    regard label model --scores < sentences.txt        # with probabilities
    regard label model --json "Ada Lovelace lived in London." | jq .spans
""")
def label(
    model: ModelArgument,
    texts: Annotated[list[str] | None, typer.Argument(
        metavar="TEXT", show_default=False,
        help="Texts, or one file with a text on each line. Without any, or with -, the lines of standard "
        "input.")] = None,
    tokenized: Annotated[bool, typer.Option(
        "--tokenized", rich_help_panel=DATA_PANEL,
        help="The words of the texts are separated by spaces already, punctuation marks too: do not split them "
        "further.")] = False,
    merge: Annotated[str | None, typer.Option(
        "--merge", metavar="GROUPS", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Print groups of labels instead of labels, such as H=HGI,E=EB,C=* or noun=NOUN+PROPN; * stands for all "
        "others. The probabilities of the labels of a group are added.")] = None,
    ensemble: Annotated[list[str] | None, typer.Option(
        "--ensemble", metavar="MODEL", rich_help_panel=MODEL_PANEL, show_default=False,
        help="Another model with the same labels; may be repeated. Each token gets the most probable label by the mean "
        "of the probabilities of all models.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(
        "--batch-tokens", metavar="N", min=1, rich_help_panel=ENGINE_PANEL, show_default="4096",
        help="Tokens per batch, padding included; a smaller number needs less memory.")] = None,
    device: DeviceOption = AUTO_DEVICE,
    scores: Annotated[bool, typer.Option(
        "--scores", rich_help_panel=OUTPUT_PANEL,
        help="Print a third column: the probability of each label.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Label every token of texts.

    Prints a line for each text: the text, a tab and the label of each of its characters or words, in the form of
    training data. With --json an object with tokens, labels, probabilities and spans: the entities of an IOB scheme, or
    runs of equal labels. A text that cannot be labelled gives an empty line and an error on stderr, and the exit code
    is 1.
    """
    from regard.tasks.labeller import Labeller

    task = open_task(model, device, "Labeller")
    assert isinstance(task, Labeller)
    if tokenized and task.unit == "character":
        fail(f"{model}: --tokenized is for a model of words, but this one labels characters. Leave it out.")
    _check_groups(task, merge)
    others = [_open_other(folder, task, device) for folder in ensemble or ()]
    notices = _Notices(task)
    if not as_json:
        _note_ambiguous_labels(task, merge)

    def work(some: list[str]) -> "list[Labelling]":
        return task.label(some, tokenized=tokenized, merge=merge, ensemble=others, batch_tokens=batch_tokens)

    for number, (text, found) in enumerate(process_each(_blocks(texts), work, text_label), 1):
        if found is not None:
            notices.report(number, found)
        _write(text, found, scores, as_json)
    notices.end()


def _open_other(folder: str, task: "Labeller", device: str) -> "Labeller":
    """Load another model of an ensemble, which must have the labels of the first."""
    from regard.tasks.labeller import Labeller

    other = open_task(folder, device, "Labeller")
    assert isinstance(other, Labeller)
    try:
        task.check_ensemble(other, f"--ensemble {folder}")
    except ValueError as error:
        fail(str(error))
    return other


def _check_groups(task: "Labeller", merge: str | None) -> None:
    """Refuse wrong groups before the first text is read, and name labels that the model does not have."""
    from regard.tasks.label_scores import parse_merge

    if merge is None:
        return
    try:
        groups = parse_merge(merge, "--merge")
        groups.groups_of(task.label_names())
    except ValueError as error:
        fail(str(error))
    if unknown := groups.unknown(task.label_names()):
        say(f"--merge: The model does not have {'this label' if len(unknown) == 1 else 'these labels'}: "
            f"{', '.join(unknown)}.")


def _note_ambiguous_labels(task: "Labeller", merge: str | None) -> None:
    """Say if a line of labels is ambiguous, because some labels contain spaces."""
    from regard.tasks.label_scores import parse_merge
    from regard.terminal import escape_unprintable

    names = [*task.label_names()]
    if merge is not None:
        names = [*dict.fromkeys(parse_merge(merge).groups_of(names).values())]
    if spaced := [name for name in names if " " in name]:
        say(f'Labels are separated by spaces, but some contain spaces, such as "{escape_unprintable(spaced[0])}". Use '
            "--json to tell them apart.")


def _blocks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts of the call, or the lines of the file that it names, or of standard input."""
    if not texts or len(texts) > 1 or not is_file_name(texts[0]):
        yield from text_blocks(texts)
        return
    from regard.data.sources.text import DataError, InputFile, read_lines
    from regard.tasks.documents import split_blocks

    try:
        yield from split_blocks(read_lines(InputFile(texts[0])), 2000)
    except DataError as error:
        fail(str(error))


class _Notices:
    """Notices on stderr: texts that were read in windows, texts with tabs, and unknown characters."""

    def __init__(self, task: "Labeller") -> None:
        self.task, self.unknown, self.count, self.tabs = task, dict[str, None](), 0, 0

    def report(self, number: int, found: "Labelling") -> None:
        """Look at the result for one text."""
        if found.windows > 1:
            say(f"Text {number} has {len(found.tokens):,} {found.unit}s, more than the {self.task.max_positions()} "
                f"positions of the model. It was read in {found.windows} overlapping windows.")
        self.tabs += "\t" in found.text
        if self.task.unit == "character":
            unknown = self.task.unknown_tokens(found.text)
            self.unknown |= dict.fromkeys(unknown)
            self.count += sum(found.text.count(character) for character in unknown)

    def end(self) -> None:
        """Say which characters were unknown, and how many texts have tabs."""
        from regard.checks import plural
        from regard.terminal import escape_unprintable

        if self.tabs:
            say(f"{plural(self.tabs, 'text')} {'has' if self.tabs == 1 else 'have'} a tab: every line is read as one "
                "text. To label the first column of a TSV file, use cut -f 1 FILE | regard label MODEL.")
        if self.unknown:
            shown = " ".join(escape_unprintable(one) for one in [*self.unknown][:SHOWN_UNKNOWN])
            more = " ..." if len(self.unknown) > SHOWN_UNKNOWN else ""
            say(f"{plural(self.count, 'character')} {'is' if self.count == 1 else 'are'} not in the training data, and "
                f"{'was' if self.count == 1 else 'were'} read as unknown: {shown}{more}")


def _write(text: str, found: "Labelling | None", scores: bool, as_json: bool) -> None:
    if as_json:
        tokens, spans = ([], []) if found is None else (found.tokens, found.spans)
        write_json({"text": text, "tokens": [token._asdict() for token in tokens],
                    "spans": [span._asdict() for span in spans]})
        return
    if found is None:
        write_line("")
        return
    from regard.data.sources.token_labels import join_tokens

    columns = [join_tokens([token.token for token in found.tokens], found.unit), str(found)]
    if scores:
        columns.append(" ".join(f"{token.probability:.4f}" for token in found.tokens))
    write_line("\t".join(columns))

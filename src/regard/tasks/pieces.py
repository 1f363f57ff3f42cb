"""Text that comes token by token: what can no longer change, whatever token comes next.

A token may end in the middle of a character, and its first space may come and go with its neighbours. So a piece of
text is given when nothing behind it can change it:

    exact tokenizers     all but the first bytes of a character that is not whole yet
    those of others      whole words, up to the last white space; and nothing of a run of single bytes

It knows tokenizers; it does not know what writes.
"""

from collections.abc import Iterable, Iterator, Sequence

from regard.data.tokenizer.contract import Tokenizer

LONGEST = 3
"""Of a character that is not whole there are at most so many bytes, each of which is shown by a sign of its own."""
LOST = "\ufffd"


def pieces(tokenizer: Tokenizer, prompt: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
    """What ids add to the text of a prompt, piece by piece; together that is `added` of all of them."""
    written, given = list[int](), 0
    for id_ in ids:
        written.append(id_)
        text = certain(tokenizer, prompt, written)
        if len(text) > given:
            yield text[given:]
            given = len(text)
    text = added(tokenizer, prompt, written)
    if len(text) > given:
        yield text[given:]


def added(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """What ids add to the text of a prompt: decoded together, because the first may begin with a space."""
    before, together = tokenizer.decode(prompt), tokenizer.decode([*prompt, *ids])
    return together[len(before):] if together.startswith(before) else tokenizer.decode(ids)


def certain(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """How the text begins that ids, and others behind them, add to that of a prompt."""
    if tokenizer.exact:
        text = added(tokenizer, prompt, ids)
        return text[:len(text) - next((n for n in range(LONGEST) if not text[:len(text) - n].endswith(LOST)), LONGEST)]
    named = tokenizer.pieces(ids)
    whole = next((count for count in range(len(ids), 0, -1) if not named[count - 1].startswith("<0x")), 0)
    text = added(tokenizer, prompt, ids[:whole])
    return text[:next((at for at in range(len(text) - 1, -1, -1) if text[at].isspace()), 0)]

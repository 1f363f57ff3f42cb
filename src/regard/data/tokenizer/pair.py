"""The tokenizers of source and target: joint, where they are one and the same, or separate; and what a model reads.

    source   the ids of the text, and the end id behind them      in training and in use alike
    target   the ids of the text                                  whoever makes a batch puts start and end around them

The end tells an encoder that nothing follows, and gives every source at least one state to look at. It holds two
tokenizers and names their files. It does not know how either cuts a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from regard import checks
from regard.data.tokenizer.contract import NAME, Tokenizer, digest

SOURCE, TARGET = "source", "target"


@dataclass(frozen=True)
class PairTokenizer:
    """Two tokenizers; `PairTokenizer(one, one)` is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both are one."""
        return self.source is self.target

    @property
    def source_end(self) -> int:
        """The id behind every source. Where several end a text, the first."""
        ends = self.source.special.end
        if not ends:
            raise checks.wrong("source", "a tokenizer with an end, which stands behind every source", "one without")
        return ends[0]

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What an encoder reads of each text."""
        end = self.source_end
        return [[*ids, end] for ids in self.source.encode_many(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What a decoder writes of each text, without the start and the end."""
        return self.target.encode_many(texts)

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The files of both: tokenizer.* of a joint one, tokenizer.source.* and tokenizer.target.* otherwise."""
        if self.joint:
            return self.source.files(name)
        return {**self.source.files(f"{name}.{SOURCE}"), **self.target.files(f"{name}.{TARGET}")}

    @property
    def sha256(self) -> str:
        """What tells these from any others: the sha256 of their files."""
        return digest(self.files())

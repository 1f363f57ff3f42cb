"""The tokenizers of source and target: joint, where they are one and the same, or separate.

It holds two tokenizers and names their files. It does not know how either cuts a text.
"""

from dataclasses import dataclass

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

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The files of both: tokenizer.* of a joint one, tokenizer.source.* and tokenizer.target.* otherwise."""
        if self.joint:
            return self.source.files(name)
        return {**self.source.files(f"{name}.{SOURCE}"), **self.target.files(f"{name}.{TARGET}")}

    @property
    def sha256(self) -> str:
        """What tells these from any others: the sha256 of their files."""
        return digest(self.files())

"""Which tokens of a padded batch are there, for mixers: a `Padding` becomes a flag for every token.

It knows no mixer. Legend: B rows, N tokens, D width.
"""

from torch import Tensor

from regard import checks
from regard.attention.looked import Pass
from regard.attention.mask import Padding


def there(x: Tensor, present: Padding | None, argument: str = "present") -> Tensor | None:
    """(B, N): True where x (B, N, D) has a token; None where it has one everywhere."""
    if present is None:
        return None
    if not isinstance(present, Padding):
        raise checks.wrong(argument, "a Padding, which says which tokens are there, or None", *checks.kind(present))
    if not present.fits((x.shape[0],)):
        got = f"for lengths of shape {checks.shape(present.lengths)}"
        raise checks.wrong(argument, f"for the {x.shape[0]} rows of x", got)
    if isinstance(present, Pass):
        return present.there(x.shape[1], x.device).expand(x.shape[:2])
    return present.matrix(1, x.shape[1], device=x.device).squeeze(-2).expand(x.shape[:2])


def cleared(x: Tensor, there_BN: Tensor | None) -> Tensor:
    """Zeros in the place of tokens that are not there: what stood there is not read, and gets no gradient."""
    return x if there_BN is None else x.masked_fill(~there_BN.unsqueeze(-1), 0.0)

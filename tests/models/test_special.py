"""The ids that have a meaning of their own, as one set."""

from regard.special_tokens import SpecialTokens


def test_all_special_ids_are_found():
    special = SpecialTokens(start=0, end=(1, 9), padding=2, unknown=3, mask=4, cls=5, separator=6)
    assert special.ids() == {0, 1, 2, 3, 4, 5, 6, 9}
    assert SpecialTokens().ids() == frozenset()

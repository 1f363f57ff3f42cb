"""What tests of error messages share: a table of wrong calls, each with what its message must say."""

import pytest


def assert_named(call, parts):
    """The call is refused with a message of the one form, which has all these parts."""
    with pytest.raises(ValueError, match="must be") as error:
        call()
    for part in parts:
        assert part in str(error.value)

"""What tests of error messages share: a table of wrong calls, each with what its message must say."""

import re

import pytest


def assert_named(call, parts):
    """The call raises a ValueError whose message has all these parts."""
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        call()
    for part in parts:
        assert part in str(error.value)

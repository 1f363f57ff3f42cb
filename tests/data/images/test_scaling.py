"""Bytes to what models read: from -1 to 1, in equal steps."""

import pytest
import torch

from regard.data.images import scale_pixels


def test_all_bytes():
    made = scale_pixels(torch.arange(256).to(torch.uint8))
    assert made.dtype == torch.float32
    assert (float(made[0]), float(made[-1])) == (-1.0, 1.0)
    torch.testing.assert_close(made.double(), torch.linspace(-1, 1, 256, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_what_is_scaled_already_is_refused(dtype):
    with pytest.raises(ValueError, match="`pixels` must be bytes"):
        scale_pixels(torch.zeros(3, dtype=dtype))

"""From the bytes of images to the numbers that models read. The one rule, in training and in use:

    x = byte / 127.5 - 1      0 becomes -1, 255 becomes 1

It is the same for all data, so nothing of it has to be stored with a model. It does not know files.
"""

import torch
from torch import Tensor

from regard import checks


def scaled(pixels: Tensor) -> Tensor:
    """Bytes of any shape, as float32 from -1 to 1."""
    if pixels.dtype != torch.uint8:
        raise checks.wrong("pixels", "bytes (torch.uint8)", f"of {pixels.dtype}",
                           "Numbers that are scaled already go into a model as they are.")
    return pixels.to(torch.float32) / 127.5 - 1.0

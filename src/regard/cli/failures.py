"""How a command ends when the machine fails it: a file that cannot be written, or memory that cannot be allocated.

Every command runs inside `report_failures`, which turns such an error into one message and exit code 1. So commands
do not catch these errors themselves. What a file is missing or has too much of is a ValueError of its reader, and is
reported by the command with exit code 2.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.cli.output import fail

OUTPUT = "The output could not be written"
REMEDIES = {
    "train": "Use fewer --batch-tokens, or a smaller model (--width, --layers).",
    "demo": "Close other programs, or train a smaller model with `regard train`.",
    "translate": "Use a smaller --beam, or shorter texts.",
    "complete": "Use a smaller --max-length, or fewer --nbest.",
    "fill": "Use shorter texts, or --device cpu.",
    "classify": "Use shorter texts, or --device cpu.",
    "evaluate": "Use a smaller --beam, or shorter texts.",
    "compare": "Use --quick, or smaller models with --set model.width=N.",
    "look": "Use a shorter text, or a smaller --beam.",
    "serve": "Serve fewer or smaller models, or use a smaller --max-queue.",
    "export": "Close other programs, or use --quantization int8 for ctranslate2.",
}
"""For each command the two settings that need less memory."""
OTHER_REMEDY = "Use smaller inputs, or close other programs."


@contextmanager
def report_failures(command: Callable[[], str | None]) -> Iterator[None]:
    """End the command with a message and exit code 1 if a file cannot be written or memory cannot be allocated.

    A closed pipe, and an error of stdout, which has no file name, are left to `regard.cli.main`.

    Args:
        command: the name of the command, which is known only while it runs.
    """
    from regard import allocation
    from regard.storage.filesystem import describe_os_error

    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if allocation.is_out_of_memory(error):
            fail(allocation.describe(error, REMEDIES.get(command() or "", OTHER_REMEDY)), 1)
        if not isinstance(error, OSError) or isinstance(error, BrokenPipeError) or error.filename is None:
            raise
        fail(describe_os_error(error), 1)

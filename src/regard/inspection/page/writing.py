"""A page as one file that needs nothing else: it works from a disk, without a network, in any browser.

It puts the document of some traces into the page's parts. What is shown of them, and how, is not known here.
"""

from collections.abc import Sequence

from regard.inspection.page import document
from regard.inspection.page.bundle import bundle
from regard.inspection.trace.trace import Trace


def page(traces: Sequence[Trace], *, title: str = "", room: int = document.ROOM,
         file: str | None = None) -> str:
    """The HTML of one trace, or of two to be compared.

    Args:
        title: above all; without it the titles of the traces.
        room: bytes of all numbers. What does not fit is there in means of blocks, and the page says so.
        file: the name of the trace, which the page then tells who wants to see more of it.
    """
    parts, table = bundle(), document.embedded(traces, title, room, file)
    return parts.page(table["title"], document.dumps(table), parts.policy())

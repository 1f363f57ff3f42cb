"""What the tests of the page in a browser share: one Chromium, and pages as files."""

import browser_visits
import pytest

from regard.inspection.page.document import page_html as written


@pytest.fixture(scope="package")
def chromium():
    """Started once: that takes longer than most tests."""
    with browser_visits.browser() as found:
        yield found


@pytest.fixture(scope="package")
def filed(tmp_path_factory):
    """Traces to the address of a page on the disk."""
    folder = tmp_path_factory.mktemp("pages")

    def write(*traces, **options):
        path = folder / f"{len([*folder.iterdir()])}.html"
        path.write_text(written(traces, **options), encoding="utf-8")
        return path.as_uri()

    return write

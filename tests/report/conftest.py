"""Made comparisons, hostile names, and pages in a browser."""

import made_comparison as _module
import pytest

from intertwine import report


@pytest.fixture
def made_comparison():
    return _module.made_comparison


@pytest.fixture
def hostile():
    return _module.HOSTILE


def opened(browser, file, result, ready="html[data-ready]", script=None, **options):
    """The page of a result, written and shown on a laptop's screen; what it says and asks for is kept."""
    path = report.write_page(result, file)
    assert path.stat().st_size < 5_000_000
    context = browser.new_context(**{"viewport": {"width": 1366, "height": 768}, **options})
    page = context.new_page()
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    if script:
        page.add_init_script(script)
    page.goto(path.as_uri(), timeout=60_000)
    page.wait_for_selector(ready, state="attached", timeout=60_000)
    return page


@pytest.fixture
def visit(browser, tmp_path):
    """Open a page, and close it after the test."""
    pages = []

    def visited(result, **options):
        pages.append(opened(browser, tmp_path / "page.html", result, **options))
        return pages[-1]

    yield visited
    for page in pages:
        page.context.close()


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory):
    """The page of the made comparison, for all tests that leave it as it can be used further."""
    return opened(browser, tmp_path_factory.mktemp("shown") / "page.html", _module.made_comparison())

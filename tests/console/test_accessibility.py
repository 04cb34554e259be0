"""Every view is named, ordered and legible for screen readers and weak eyes, in both color schemes."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import expect

from fairlead.console.views import VIEWS
from tests.console.conftest import Seen

CHECK = Path(__file__).with_name("accessibility.js").read_text()
PARAMETERS = {
    "workflow": "id=order-1",
    "stuck": "id=order-1",
    "branches": "id=order-1",
    "task-queue": "name=orders&type=workflow",
    "fairness": "name=orders&type=workflow",
    "scaler": "name=orders&type=workflow",
    "schedule": "id=nightly",
}
# Views that need a deployment or a second cluster: the pages of an error.
WITHOUT_DATA = {"deployment": "name=none", "failover": "name=none"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", [view.path for view in VIEWS], ids=[view.path or "home" for view in VIEWS])
def test_a_view_has_names_an_order_and_contrast(seen: Seen, path: str, scheme: Literal["light", "dark"]) -> None:
    seen.page.emulate_media(color_scheme=scheme)
    if path in WITHOUT_DATA:
        seen.allowed |= {400, 404}
    query = PARAMETERS.get(path, "") or WITHOUT_DATA.get(path, "")
    seen.goto(f"{path}?{query}" if query else path)
    expect(seen.page.locator("main h1")).to_be_visible()
    # Forms are checked open.
    seen.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert seen.page.evaluate(CHECK) == []


def test_the_check_finds_what_it_looks_for(seen: Seen) -> None:
    """Each fault is planted in a page, and must be found."""
    faults = {
        "no label": "<input id=planted>",
        "no name": "<a href=#></a>",
        "no title for a picture": "<svg role=img></svg>",
        "a picture without a role": "<svg></svg>",
        "no caption": "<table><tr><td>x</table>",
        "a heading of level 4": "<h4>x</h4>",
        "contrast of": "<p class=planted>x</p>",
        "an id twice": "<p id=main>x</p>",
    }
    for words, markup in faults.items():
        seen.goto("namespaces")
        plant = """(markup) => {
            document.querySelector("main").insertAdjacentHTML("beforeend", markup);
            const ground = getComputedStyle(document.body).backgroundColor;
            for (const one of document.querySelectorAll(".planted")) one.style.color = ground;
        }"""
        seen.page.evaluate(plant, markup)
        found = seen.page.evaluate(CHECK)
        assert any(words in fault for fault in found), (words, found)

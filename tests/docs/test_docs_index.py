"""The index of the documentation names every page, and its links have targets."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
INDEX = (DOCS / "README.md").read_text()
TARGETS = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", INDEX)}


def test_every_page_and_every_folder_of_pages_is_in_the_index() -> None:
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    folders = {page.relative_to(DOCS).parts[0] for page in DOCS.glob("*/**/*.md")}
    assert pages - TARGETS == set()
    assert folders - {target.partition("/")[0] for target in TARGETS} == set()


def test_every_link_of_the_index_leads_to_a_file_or_folder() -> None:
    assert {target for target in TARGETS if not (DOCS / target).exists()} == set()

import re
from pathlib import Path

import yaml

from fairlead.settings import SETTINGS, parse_file
from fairlead.settings.dynamic.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_settings_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run: .venv/bin/fairlead config docs > docs/settings.md"


def test_the_settings_page_describes_every_setting_with_every_spelling() -> None:
    page = reference()
    for setting in SETTINGS:
        assert f"## `{setting.key}`\n\n{setting.about}\n" in page
        for alias in setting.aliases:
            assert f"also spelled `{alias}`" in page


def test_the_example_on_the_settings_page_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)
    parsed = parse_file(example.encode(), SETTINGS)
    assert parsed.problems == ()
    assert len(parsed.rules) == sum(len(values) for values in yaml.safe_load(example).values())

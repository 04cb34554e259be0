"""The journal's part of the static configuration."""

from pathlib import Path

import pytest

from fairlead.settings import InvalidSettings
from fairlead.settings.static.config import DEFAULTS, JournalConfig, JournalPayloads, StaticConfig, load_config


def load(folder: Path, text: str) -> StaticConfig:
    file = folder / "fairlead.yaml"
    file.write_text(text)
    return load_config(file, {})


def test_no_journal_is_written_without_a_configured_folder(tmp_path: Path) -> None:
    assert DEFAULTS.journal is None
    assert load(tmp_path, "journal:\n").journal is None


def test_the_folder_is_relative_to_the_configuration_file(tmp_path: Path) -> None:
    assert load(tmp_path, "journal: {folder: told}").journal == JournalConfig(tmp_path / "told")


@pytest.mark.parametrize(
    ("value", "payloads"),
    [("true", JournalPayloads.WHOLE), ("false", JournalPayloads.NONE), ("keys", JournalPayloads.KEYS)],
)
def test_payloads_are_left_out_outlined_or_whole(tmp_path: Path, value: str, payloads: JournalPayloads) -> None:
    config = load(tmp_path, f"journal: {{folder: /var/told, payloads: {value}}}")
    assert config.journal == JournalConfig(Path("/var/told"), payloads)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("journal: {payloads: true}", "journal.payloads has no effect without journal.folder: give that as well"),
        ("journal: {folder: x, payloads: 1}", "journal.payloads: 1 is not one of true, false and keys"),
        ("journal: {folder: 5}", "journal.folder: 5 is not a file name"),
        ("journal: {folder: x, payload: true}", "journal.payload is unknown: did you mean payloads?"),
    ],
)
def test_an_invalid_section_is_rejected(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        load(tmp_path, text)
    assert complaint in str(raised.value)

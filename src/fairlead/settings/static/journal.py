"""Section `journal` of the static configuration."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.section import Section
from fairlead.settings.static.store import parse_file_name


class JournalPayloads(StrEnum):
    """Events in the journal: only types and digests, also outlines without payload data, or whole events."""

    NONE = "false"
    KEYS = "keys"
    WHOLE = "true"


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Folder of the journal, and the parts of events that it contains."""

    folder: Path
    payloads: JournalPayloads = JournalPayloads.NONE


def read_journal(journal: Section, folder: Path) -> JournalConfig | None:
    """Read the section `journal`; None without a folder."""
    name = journal.value("folder", parse_file_name, None)
    payloads = journal.value("payloads", _parse_payloads, JournalPayloads.NONE)
    if name is None:
        if journal.given("payloads"):
            journal.complain_of("payloads", " has no effect without journal.folder: give that as well")
        return None
    return JournalConfig(folder / name, payloads)


def _parse_payloads(raw: Plain) -> JournalPayloads:
    if isinstance(raw, bool):
        return JournalPayloads.WHOLE if raw else JournalPayloads.NONE
    if raw != JournalPayloads.KEYS.value:
        raise InvalidValue("is not one of true, false and keys")
    return JournalPayloads.KEYS

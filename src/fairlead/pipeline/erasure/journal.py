"""Erasure from the segments of a journal: lines go, frames without such lines stay as they are."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from fairlead.journal.frames import BadFrame, read_frames
from fairlead.journal.segments import COMPRESSION_LEVEL, OPEN_SUFFIX, sync_path
from fairlead.pipeline.erasure.target import EVENTS, Target
from fairlead.pipeline.sources.segments import Segment

# The end of a segment's name; also of the files in which an export remembers what it exported.
_SUFFIX = ".jsonl.zst"


@dataclass(frozen=True, slots=True)
class ErasedSegments:
    """The records that were removed, and those of other runs whose events are gone because they named the workflow.

    `unreadable` has the segments that can't be read, and `still_open` those that a server still writes.
    """

    segments: int
    records: int
    blanked: int
    unreadable: tuple[Path, ...]
    still_open: int


def erase_from_journal(
    journal: Path, target: Target, *, replacing: Callable[[list[Segment]], None], is_dry_run: bool = False
) -> ErasedSegments:
    """Rewrite the segments that have records of the target; each is replaced by one rename.

    `replacing` gets the new segments before the first is replaced. After a kill, the next run replaces them again.
    """
    records = blanked = still_open = 0
    unreadable: list[Path] = []
    drafts: dict[Path, Path] = {}
    for path in sorted(journal.rglob("*")):
        if path.name.endswith(_SUFFIX + OPEN_SUFFIX):
            still_open += 1
        if not path.name.endswith(_SUFFIX) or not path.is_file():
            continue
        try:
            removed, cleared, content = _rewritten(path, target)
        except BadFrame:
            unreadable.append(path)
            continue
        if removed or cleared:
            records, blanked = records + removed, blanked + cleared
            drafts[path] = path.with_name(f".{path.name}.erased")
            if not is_dry_run:
                _write(drafts[path], content, like=path)
    if not is_dry_run:
        replacing(
            [
                Segment(path.parent.name, path.name, draft, draft.stat().st_size)
                for path, draft in drafts.items()
                if path.parent.parent == journal
            ]
        )
        for path, draft in drafts.items():
            draft.replace(path)
            sync_path(path.parent)
    return ErasedSegments(len(drafts), records, blanked, tuple(unreadable), still_open)


def _rewritten(path: Path, target: Target) -> tuple[int, int, bytes]:
    """Return the numbers of removed and of blanked records, and the file's new content."""
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
    removed = cleared = 0
    kept = io.BytesIO()
    with path.open("rb") as file:
        begin = 0
        for frame in read_frames(file):
            lines = list(_kept(frame.content, target))
            gone, blank = sum(one is None for one, _ in lines), sum(is_blank for _, is_blank in lines)
            if gone or blank:
                content = b"".join(line for line, _ in lines if line is not None)
                kept.write(compressor.compress(content) if content else b"")
            else:
                position = file.tell()
                file.seek(begin)
                kept.write(file.read(frame.end - begin))
                file.seek(position)
            begin = frame.end
            removed, cleared = removed + gone, cleared + blank
    return removed, cleared, kept.getvalue()


def _kept(content: bytes, target: Target) -> Iterator[tuple[bytes | None, bool]]:
    """Yield each line as it stays, None if it goes, and whether its events were blanked."""
    for line in content.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            yield line, False
            continue
        if not isinstance(record, dict):
            yield line, False
        elif target.is_record(record):
            yield None, False
        elif named := [name for name in EVENTS if target.is_mentioned(record.get(name))]:
            rest = {name: value for name, value in record.items() if name not in named}
            yield json.dumps(rest, separators=(",", ":"), ensure_ascii=False).encode() + b"\n", True
        else:
            yield line, False


def _write(draft: Path, content: bytes, *, like: Path) -> None:
    with draft.open("wb") as out:
        shutil.copymode(like, draft)
        out.write(content)
        out.flush()
        os.fsync(out.fileno())

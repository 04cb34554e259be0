"""What a run id looks like."""

import re

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_run_id(text: str) -> bool:
    """Whether the text is a UUID, as every run id is."""
    return _UUID.fullmatch(text) is not None

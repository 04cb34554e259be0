"""The format of run ids."""

import re

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_run_id(text: str) -> bool:
    """Whether the text is a UUID, the format of all run ids."""
    return _UUID.fullmatch(text) is not None

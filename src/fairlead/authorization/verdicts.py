"""Verdicts on tokens that were seen before: a repeated token costs no signature check."""

from collections import OrderedDict
from typing import Final

from fairlead.authorization.claims import Claims

# Accepted tokens that are kept, and their bytes: the size of the claims follows that of the token.
ACCEPTED_MAX: Final = 10_000
ACCEPTED_BYTES_MAX: Final = 16 << 20
# Number of cached refused tokens. Unauthenticated callers can fill this cache, so it is small, and separate from the
# cache of accepted tokens.
REFUSED_MAX: Final = 1_000


class Verdicts:
    """The claims of accepted tokens, and the reasons of refused ones, by digest; the oldest are forgotten first."""

    def __init__(self) -> None:
        # By digest: the claims, the time in seconds until which they count, and the bytes of the token.
        self._accepted: OrderedDict[bytes, tuple[Claims, float, int]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self.accepted_bytes = 0

    def __len__(self) -> int:
        return len(self._accepted) + len(self._refused)

    def find(self, digest: bytes, now_s: float) -> Claims | str | None:
        """The claims of an accepted token, the reason of a refused one, or None."""
        accepted = self._accepted.get(digest)
        if accepted is not None:
            return accepted[0] if now_s < accepted[1] else None
        refused = self._refused.get(digest)
        return refused[0] if refused is not None and now_s < refused[1] else None

    def accept(self, digest: bytes, claims: Claims, *, until_s: float, size_bytes: int) -> None:
        """Keep the claims of a token."""
        self._refused.pop(digest, None)
        self._forget(digest)
        self._accepted[digest] = claims, until_s, size_bytes
        self.accepted_bytes += size_bytes
        while len(self._accepted) > ACCEPTED_MAX or self.accepted_bytes > ACCEPTED_BYTES_MAX:
            self._forget(next(iter(self._accepted)))

    def refuse(self, digest: bytes, reason: str, *, until_s: float) -> None:
        """Keep the reason of a refusal."""
        self._forget(digest)
        self._refused[digest] = reason, until_s
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._accepted.clear()
        self._refused.clear()
        self.accepted_bytes = 0

    def _forget(self, digest: bytes) -> None:
        forgotten = self._accepted.pop(digest, None)
        if forgotten is not None:
            self.accepted_bytes -= forgotten[2]

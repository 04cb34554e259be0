import hashlib
from collections.abc import Callable, Iterator


class Transcript:
    """What happened, in order and in words: the same for the same seed, byte for byte."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines: list[str] = []
        self._violations: list[str] = []

    def note(self, who: str, what: str) -> None:
        """Write down what happened now."""
        self._lines.append(f"{self._clock():10.4f} {who:<10} {what}")

    def violate(self, who: str, what: str) -> None:
        """Write down that something happened which never may; the run goes on, and fails in the end."""
        self.note(who, f"VIOLATION {what}")
        self._violations.append(f"at {self._clock():.4f} s, {who}: {what}")

    @property
    def violations(self) -> list[str]:
        """All that happened and never may, in order."""
        return list(self._violations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def about(self, word: str) -> list[str]:
        """The lines that name a task."""
        return [line for line in self._lines if word in line.replace(",", " ").split()]

    def digest(self) -> str:
        """The same if and only if all lines are."""
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest()

import hashlib
from collections.abc import Callable, Iterator


class Transcript:
    """The log of a run, in order; the same seed gives exactly the same log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines: list[str] = []
        self._violations: list[str] = []

    def note(self, who: str, what: str) -> None:
        """Record an event of the run with the current time."""
        self._lines.append(f"{self._clock():10.4f} {who:<10} {what}")

    def violate(self, who: str, what: str) -> None:
        """Record a violation of a rule; the run continues, and fails at its end."""
        self.note(who, f"VIOLATION {what}")
        self._violations.append(f"at {self._clock():.4f} s, {who}: {what}")

    @property
    def violations(self) -> list[str]:
        """All violations, in order."""
        return list(self._violations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def about(self, word: str) -> list[str]:
        """The lines that name a task."""
        return [line for line in self._lines if word in line.replace(",", " ").split()]

    def digest(self) -> str:
        """A hash of all lines."""
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest()

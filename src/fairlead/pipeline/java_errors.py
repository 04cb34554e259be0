"""The error of calls to Java. The thin client of Spark Connect has no Java, and comes without py4j."""

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:  # pragma: no cover - the thin client has another environment

    class Py4JError(Exception):  # type: ignore[no-redef]
        """No call raises it."""


__all__ = ["Py4JError"]

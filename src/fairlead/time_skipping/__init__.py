"""Time skipping for tests of workflows: the clock jumps to the next timer when nothing is in flight."""

from fairlead.time_skipping.parts import TimeSkipping
from fairlead.time_skipping.service import TEST_SERVICE, add_test_service
from fairlead.time_skipping.skipper import Skipper

__all__ = ["TEST_SERVICE", "Skipper", "TimeSkipping", "add_test_service"]

"""Depth of the tests: `make test` runs a shallow form of the costly ones, `make sim` the deep one."""

import os

# `make sim` selects the tests marked `sim`, so a test that reads this carries that marker.
IS_DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "sim"

"""Python code that Spark's workers run on Arrow batches; it does not import Spark."""

"""What runs on Arrow batches in Python workers: no Spark in here."""

"""The data pipeline on Spark: what the server journaled becomes tables, findings and recommendations."""

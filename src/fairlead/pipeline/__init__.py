"""The data pipeline on Spark: turns the server's journal into tables, findings and recommendations."""

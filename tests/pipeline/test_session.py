from pyspark.sql import SparkSession


def test_x(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"

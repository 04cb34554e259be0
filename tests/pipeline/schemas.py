"""Comparison of schemas."""

from pyspark.sql.types import StructType


def differences(*, expected: StructType, found: StructType) -> list[str]:
    """Describe how two schemas differ; the order of columns and nullability are ignored."""
    wanted = {field.name: field.dataType.simpleString() for field in expected.fields}
    there = {field.name: field.dataType.simpleString() for field in found.fields}
    return [
        f"{name} is {there.get(name, 'missing')}, not {wanted.get(name, 'known')}"
        for name in sorted(wanted.keys() | there.keys())
        if wanted.get(name) != there.get(name)
    ]

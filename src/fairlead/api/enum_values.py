"""Fast values of the API's enums: protobuf finds each one by a function in Python, at every use."""

import temporalio.api.enums.v1
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


def cache_enum_values() -> None:
    """Make the values attributes of their enums, which Python finds without that function; call it once."""
    for enum in vars(temporalio.api.enums.v1).values():
        if isinstance(enum, EnumTypeWrapper):
            for name, value in enum.items():
                setattr(enum, name, value)

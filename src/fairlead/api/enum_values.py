"""Fast access to the values of the API's enums: protobuf looks up each value in a Python function, at every use."""

import temporalio.api.enums.v1
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


def cache_enum_values() -> None:
    """Make the values plain attributes of their enums, which need no function call; call it once."""
    for enum in vars(temporalio.api.enums.v1).values():
        if isinstance(enum, EnumTypeWrapper):
            for name, value in enum.items():
                setattr(enum, name, value)

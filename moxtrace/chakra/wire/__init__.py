"""Chakra's protobuf wire format between arrays and bytes: what the writer and the reader are made of.

The message definitions are those of ``schema/protobuf/et_def.proto`` in mlcommons/chakra; the encoding is
https://protobuf.dev/programming-guides/encoding/.
"""

__all__: list[str] = []

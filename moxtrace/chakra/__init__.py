"""Chakra execution traces: arrays, wire encoder, writer, reader, verify."""

"""Machines of one operation, each built from the public API alone."""

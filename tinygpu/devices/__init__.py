"""Devices: the numbers of one chip, each with where it comes from.

``device`` reads the JSON files beside it.  Imports nothing but errors and the strict reader.
"""

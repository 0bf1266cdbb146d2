"""Search as a user calls it: machines ranked together, then measured, to the fastest kernel.

This room stands above the others of ``search/``: it measures, so it imports ``codegen/``.
"""

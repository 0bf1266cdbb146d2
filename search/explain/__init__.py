"""Explanations: what a schedule waits for, what would change it, why one beats another.

``causes`` and ``mends`` ask the time model the same question without one excess, or one limit of
the device, each; ``explanation`` says it as values, text and JSON; ``comparisons`` tells pairs
apart.  May import ``time`` and ``exact``.  Begin with ``explain``.
"""

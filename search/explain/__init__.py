"""Explanations: what a schedule waits for, what would change it, why one beats another.

``causes`` and ``mends`` ask the time model the same question without one excess each; ``bounds``
for terms with barriers; ``explanation`` says it as values, text and JSON.  May import ``time`` and
``exact``.  Begin with ``explain``.
"""

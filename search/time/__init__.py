"""Time: what a term takes on a device, as a breakdown with a named bottleneck.

``cost`` is the entry: the (max, +) interpretation and what surrounds a tile.  ``work`` and
``pattern`` say what statements ask of the units, ``recursion`` runs agents over tiles and steps,
``timeline`` draws the same run.  ``registers`` foresees ptxas.  ``fitted`` holds the numbers that
were chosen on measurements.  Begin with ``cost``.
"""

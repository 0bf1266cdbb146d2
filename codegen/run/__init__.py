"""From PTX to a measured kernel: assembled, launched, validated, timed, written as a bundle.

``assemble`` calls ptxas, ``launch`` and ``arguments`` make a term callable, ``measure`` takes
schedules to validated times by ``worker`` and ``on_gpu``; ``calibrate`` measures a device,
``interpretation`` runs a term's PTX in the emulator.  May import ``emit``, ``runtime`` and
``emulator``.  Begin with ``measure``.
"""

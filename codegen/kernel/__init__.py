"""A kernel in the making: where its values stand and how its text is put together.

``kernel`` holds text, parameters, registers and addresses; ``ptx`` is the text, ``addresses`` and
``loops`` step pointers, ``rings`` turn indices into stages and parities, ``smem`` plans shared
memory, ``tensor_map`` and ``trimming`` say what TMA reads.  Begin with ``kernel``.
"""

"""Instructions, one value each in the file of its family, and what they work on.

``instruction`` says what an instruction reads and writes, who issues it, how its end is observed
and which unit it occupies, ``ordering`` what groups and fences are; ``instructions`` has them all.
``memory`` has the levels and the data types, ``fragment`` how threads share out a tile in
registers, ``algebra`` the arithmetic in which all of it is executed.  May import ``devices``.
Begin with ``instruction``, then ``wgmma``.
"""

"""Concurrency: whether a program may deadlock, race or read what is not meant, at any sizes.

What lives here is one judge over one tree.  A program is *erased* (``erase``): the same kind of
program, without sizes, maps and global memory.  ``assumptions`` says what the theorem needs and
this program has not.  ``symmetry`` lets one CTA stand for those that are alike.  ``blocks`` lays
the roles' loops beside one another.  ``facts`` holds what agents know; ``conditions`` passes over
events and says what goes wrong.  ``cutoff`` searches all numbers of tiles and trips.  ``judge``
puts these together: begin reading there.  Modules here import from ``tinygpu`` (terms,
expressions, errors) and from one another in this order; other packages import
``tinygpu.legality.concurrency.judge`` alone.

Source: ``docs/model-concurrency.md``.
"""

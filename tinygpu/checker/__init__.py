"""The checker: a term and a certificate, accepted or refused at a line.

It shares nothing with the judge, the emitter or the instructions' room: of the package it imports
the classes of terms alone.  Begin with ``check``, whose docstring is the theorem; ``rules`` has
what is asked of an event, ``protocol`` how a term is read, ``invariant`` what a certificate claims
of a node, ``table`` what is believed of PTX, ``written`` the certificate as a file.  ``make`` finds
certificates and is not believed.
"""

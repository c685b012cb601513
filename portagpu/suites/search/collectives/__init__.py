"""Random programs of collectives on several ranks, and a model over lists of rank values.

``values`` draws numbers, ``model`` says what is in every buffer of every rank before and after a
call, ``buffers`` holds these on the device and finds the first difference, ``calls`` are torch's
functions, ``runner`` runs a program on one rank, ``drawing`` draws the programs, and ``area`` links
rank 0 with the others and judges.
"""

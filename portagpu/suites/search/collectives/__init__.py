"""Random programs of collectives: ranks beside a model over lists of rank values.

``values`` draws numbers, ``model`` says what is in every buffer of every rank before and after a
call, ``buffers`` holds these on the device and tells the first difference, ``calls`` are torch's
functions, ``runner`` runs a program on one rank, ``channel`` links rank 0 with the others, and
``area`` draws the programs.
"""

"""Communication between ranks, without a vendor's words. Importing it imports nothing.

- ``comm``: ``gpu.comm``, a device's communication library. Its methods open what is below.
- Joining and leaving a process group: ``init``, with ``launcher`` (who started the rank),
  ``stores`` (where ranks meet), ``rendezvous`` (who is missing) and ``membership`` (the answer).
- Calls: ``checked`` compares them between the ranks, ``call_hooks`` also torch's own; ``helpers``
  and ``compression`` do the same with every library. ``torch_names`` has torch's new names.
- Choosing: ``choice``, with ``alpha_beta`` (a line through measured times), ``library_estimate``
  and ``buckets`` (DDP, FSDP).
- Tuning: ``tuning`` (profiles), ``measured`` (on what), ``algorithms`` (compositions of calls),
  ``tuned`` (calls as a profile says), ``emit`` and ``tuner_csv`` (files for other stacks).

``portagpu.suites.collectives`` runs ranks for verify and tune,
``portagpu.checks.collectives_doctor`` reads what runs left, and ``portagpu.machine.placement`` says
where ranks belong. ``portagpu.facts.nccl_tests`` has bandwidths, and reads nccl-tests.
"""

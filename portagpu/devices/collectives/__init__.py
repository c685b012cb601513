"""Communication between ranks, without a vendor's words. Importing it imports nothing.

- ``comm``: ``gpu.comm``, a device's communication library. Its methods open what is below.
- Joining and leaving a process group: ``init``, with ``launcher`` (who started the rank),
  ``stores`` (where ranks meet) and ``rendezvous`` (who is missing).
- Calls: ``checked`` compares them between the ranks, also torch's own; ``calls`` says what a call
  is, and ``annotated`` shows it to profilers. ``helpers`` and ``compression`` do the same with
  every library and version of torch.
- Choosing: ``cost`` (what is asked and answered, and a line through measured times), ``choice``
  (the answer) and ``buckets`` (DDP, FSDP).
- Tuning: ``tuning`` (profiles, and what they were measured on), ``algorithms`` (compositions of
  calls, and calls as a profile says) and ``emit`` (files for other stacks).

``portagpu.suites.collectives`` runs ranks for verify and tune,
``portagpu.checks.collectives_doctor`` reads what runs left, and ``portagpu.machine.placement`` says
where ranks belong. ``portagpu.facts.nccl_tests`` has bandwidths, and reads nccl-tests.
"""

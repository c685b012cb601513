"""Communication between ranks, without a vendor's words. Importing it imports nothing.

- ``comm``: ``gpu.comm``, a device's communication library. Its methods open what is below.
- Joining and leaving a process group: ``init``, with ``launcher`` (who started the rank),
  ``stores`` (where ranks meet), ``meeting`` (who is missing) and ``membership`` (the answer).
- Calls: ``checked`` compares them between the ranks, ``call_hooks`` also torch's own; ``helpers``
  and ``compression`` do the same with every library. ``renamed`` has torch's new names.
- Choosing: ``choice``, with ``alpha_beta`` (a line through measured times), ``own_answer`` (the
  library's estimate) and ``buckets`` (DDP, FSDP). ``bandwidth`` defines algbw and busbw.
- Tuning: ``tuning`` (profiles), ``measured`` (on what), ``ways`` (compositions of calls),
  ``tuned`` (calls as a profile says), ``emit`` and ``tuner_csv`` (files for other stacks).
- ``perf_tables``: outputs of nccl-tests and rccl-tests, text (``perf_text``) and JSON
  (``perf_json``).

``portagpu.commbench`` runs ranks for verify and tune, ``portagpu.doctor`` reads what runs left, and
``portagpu.placement`` says where ranks belong.
"""

"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.devices.collectives import helpers as helpers
from portagpu.devices.collectives.compression import TopK as TopK
from portagpu.devices.collectives.compression import top_k_hook as top_k_hook
from portagpu.devices.collectives.helpers import all_gather_bytes as all_gather_bytes
from portagpu.devices.collectives.helpers import all_gather_uneven as all_gather_uneven
from portagpu.devices.collectives.helpers import all_reduce_wider as all_reduce_wider
from portagpu.devices.collectives.helpers import all_reduce_with_nan as all_reduce_with_nan
from portagpu.devices.collectives.helpers import all_to_all_bytes as all_to_all_bytes
from portagpu.devices.collectives.helpers import broadcast_bytes as broadcast_bytes

"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.train.planning.cluster import Cluster as Cluster
from portagpu.train.planning.cluster import cluster_of as cluster_of
from portagpu.train.planning.memory import estimate as estimate
from portagpu.train.planning.memory import kv_cache as kv_cache
from portagpu.train.planning.model import MODELS as MODELS
from portagpu.train.planning.model import Model as Model
from portagpu.train.planning.model import find_model as find_model
from portagpu.train.planning.model import read_model as read_model
from portagpu.train.planning.plans import Plan as Plan
from portagpu.train.planning.plans import Plans as Plans
from portagpu.train.planning.plans import Rejected as Rejected
from portagpu.train.planning.plans import plan as plan
from portagpu.train.planning.recipe import Layout as Layout
from portagpu.train.planning.recipe import Precision as Precision
from portagpu.train.planning.recipe import Recipe as Recipe
from portagpu.train.planning.settings import deepspeed_config as deepspeed_config
from portagpu.train.planning.settings import megatron_arguments as megatron_arguments
from portagpu.train.planning.settings import torchtitan_arguments as torchtitan_arguments
from portagpu.train.planning.states import Estimate as Estimate
from portagpu.train.planning.states import Fit as Fit
from portagpu.train.planning.states import Phase as Phase
from portagpu.train.planning.states import Term as Term
from portagpu.train.planning.trackers import Tracked as Tracked
from portagpu.train.planning.trackers import track as track

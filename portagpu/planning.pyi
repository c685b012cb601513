from portagpu.train.planning import *

from portagpu.train.parallel import *

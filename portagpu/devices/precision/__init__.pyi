"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.devices.precision.casts import OnInfinity as OnInfinity
from portagpu.devices.precision.casts import OnNan as OnNan
from portagpu.devices.precision.casts import cast as cast
from portagpu.devices.precision.casts import OnLoss as OnLoss
from portagpu.devices.precision.casts import convert as convert
from portagpu.devices.precision.products import Float32Switch as Float32Switch
from portagpu.devices.precision.formats import FORMATS as FORMATS
from portagpu.devices.precision.formats import Format as Format
from portagpu.devices.precision.formats import Kind as Kind
from portagpu.devices.precision.formats import format_of as format_of
from portagpu.devices.precision.model import EVERYWHERE as EVERYWHERE
from portagpu.devices.precision.model import Arithmetic as Arithmetic
from portagpu.devices.precision.model import Recipe as Recipe
from portagpu.devices.precision.model import Support as Support
from portagpu.devices.precision.model import Deterministic as Deterministic
from portagpu.devices.precision.model import MixedPrecision as MixedPrecision
from portagpu.devices.precision.model import Fp8 as Fp8
from portagpu.devices.precision.model import Precision as Precision
from portagpu.devices.precision.casts import Scaled as Scaled
from portagpu.devices.precision.casts import quantize as quantize
from portagpu.devices.precision.model import DtypeSupport as DtypeSupport

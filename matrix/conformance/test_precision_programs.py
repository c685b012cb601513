"""Random programs of numbers, of autocast and of gradient scaling."""

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import Search, case


@case(
    "precision/random-programs",
    spec="Casts, arithmetic, sums, products, indexing and their gradients give what exact numbers "
    "give, and change nothing else.",
    outcome="bounded: exact where the format rounds once, else by the number of terms and u",
    traps=("P01", "P05", "P13", "P20"),
    search=Search("numbers", seconds=6),
    smoke=True,
    does_not_show="values and rounding, not speed",
)
def test_random_programs(search):
    search()


@case(
    "precision/autocast-programs",
    spec="Autocast computes in the dtype of its innermost block, in this thread, with weights as "
    "they are now.",
    capability=Capability.AUTOCAST,
    outcome="bounded: by the number of terms and u of the dtype",
    covers=("Backend.autocast", "portagpu.autocast"),
    search=Search("autocast", seconds=2),
    smoke=True,
)
def test_autocast_programs(search):
    search()


@case(
    "precision/scaler-programs",
    spec="A gradient scaler grows, backs off and skips steps as torch documents.",
    capability=Capability.AUTOCAST,
    covers=("Backend.GradScaler", "portagpu.GradScaler"),
    search=Search("scaler", seconds=2),
    smoke=True,
)
def test_scaler_programs(search):
    search()
